"""Completes an OpenAPI document for claimed operations: their header, their form field, their problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from fastapi import FastAPI, Header

from ...core.settings import Settings
from ...web import problems
from ...web.forms import CONTENT_TYPES, HEADER, FormRefused, Refusal
from ...web.header import DRAFT, NAME
from ...web.problems import ProblemType
from .callers import GUARDS
from .late_exits import dependencies_of, routes_of

_MARK = "x-fastdedup"
"""The key of a header parameter's schema under which its facts are."""
_FACTS = "x-idempotency"
"""The key of an operation under which its rules are published."""
_OF_CLAIMS = [
    problems.IN_PROGRESS,
    problems.TOO_LARGE,
    problems.MISMATCH,
    problems.UNAVAILABLE,
]
_SCHEMA = {
    "type": "object",
    "title": "Problem",
    "description": "RFC 9457",
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
    "required": ["type", "title", "status"],
}


def token_header(field: str) -> Any:
    """Return the parameter of a token's header, which may be left out. `field`: the form's, for `describe`.

    Declare it as `str`: FastAPI takes twice as long to read a `str | None`. A key's header is no parameter, because
    to read it would be an eighth of what Claimed() costs; `describe` adds it to the document.
    """
    return Header(None, alias=HEADER, json_schema_extra={_MARK: {"field": field}})


def describe(app: FastAPI, settings: Settings, max_request: int) -> None:
    """Have the application's OpenAPI document completed whenever it is made. Again, if `app.openapi` was replaced.

    Args:
        app: the application.
        settings: the settings of its `Dedup`.
        max_request: the longest body of a request, in bytes, for operations without a limit of their own.
    """
    if getattr(app.openapi, "func", None) is _completed:
        return
    defaults = {
        "lifetime_seconds": settings.ttl,
        "failure_lifetime_seconds": settings.failure_ttl,
        "largest_request_bytes": max_request,
    }
    app.openapi = partial(_completed, app, app.openapi, defaults)  # type: ignore[method-assign]


def _completed(app: FastAPI, make: Callable[[], dict[str, Any]], defaults: dict[str, Any]) -> dict[str, Any]:
    if app.openapi_schema is None:
        schema = make()
        _add_keys(app, schema.get("paths", {}))
        for operation in _operations(schema):
            _complete(operation, defaults)
        app.openapi_schema = schema
    return app.openapi_schema


def _add_keys(app: FastAPI, paths: dict[str, Any]) -> None:
    """Add the parameter of the key's header to each operation that a key claims."""
    claimed: dict[tuple[str, str], Any] = {}
    for route in routes_of(app):
        facts = [getattr(one.call, GUARDS, None) for one in dependencies_of(route.dependant)]
        for method in getattr(route, "methods", None) or ():  # a WebSocket has none
            if route.include_in_schema:  # of two routes the document has the later one
                claimed[route.path_format, method.lower()] = next(filter(None, facts), None)
    for (path, method), mark in claimed.items():
        operation = paths.get(path, {}).get(method)
        if mark is not None and operation is not None and _FACTS not in operation:
            schema = {"type": "string", "title": NAME, _MARK: {"facts": mark}}
            given = operation.get("parameters", ())
            is_required = any(one.get("required", False) for one in given if _is_key(one))
            header = {"name": NAME, "in": "header", "required": is_required, "schema": schema}
            operation["parameters"] = [*(one for one in given if not _is_key(one)), header]


def _is_key(parameter: dict[str, Any]) -> bool:
    """True for the key's header as the handler declares it. A reference, of `openapi_extra`, has no name."""
    return parameter.get("in") == "header" and parameter["name"].lower() == NAME.lower()


def _operations(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in schema.get("paths", {}).values():
        yield from (operation for operation in path.values() if isinstance(operation, dict))


def _complete(operation: dict[str, Any], defaults: dict[str, Any]) -> None:
    for parameter in operation.get("parameters", ()):
        mark = parameter.get("schema", {}).pop(_MARK, None)
        if mark is None:
            continue
        parameter["schema"]["minLength"] = 1
        if "field" in mark:
            parameter["description"] = f"The one-time token, if it is not the form's field {mark['field']!r}."
            _add_field(operation, mark["field"])
            _add_refusals(operation)
        else:
            facts = {**defaults, **mark["facts"]}
            operation[_FACTS] = facts
            parameter["required"] = parameter["required"] or facts["key"] == "required"
            parameter["description"] = _about(facts)
            for problem in _problems_of(facts):
                _add(operation, problem.status, problem.title, problem)


def _problems_of(facts: dict[str, Any]) -> list[ProblemType]:
    """Return the problems that a claimed operation may answer."""
    missing = [problems.KEY_MISSING] if facts["key"] == "required" else []
    unknown = [problems.PRINCIPAL_REQUIRED] if facts["caller"] == "required" else []
    return [*missing, problems.KEY_MALFORMED, *unknown, *_OF_CLAIMS]


def _about(facts: dict[str, Any]) -> str:
    """Describe the header to the author of a client, with the lifetimes, statuses and limits that hold."""
    kept = ", ".join(facts["replayed_statuses"])
    return (
        "A new UUID for each new request, the same one for each retry of it: the operation happens once, and its "
        f"response is repeated for {facts['lifetime_seconds']:.15g} s (a 4xx for "
        f"{facts['failure_lifetime_seconds']:.15g} s), with Idempotency-Replayed: true. Repeated are the statuses "
        f"{kept}, and bodies of at most {facts['largest_replayed_response_bytes']} bytes; a request's body has at "
        f"most {facts['largest_request_bytes']} bytes. While the first request runs: {facts['in_flight']}. "
        f"See {DRAFT}."
    )


def _add(operation: dict[str, Any], status: int, title: str, problem: ProblemType) -> None:
    response = operation.setdefault("responses", {}).setdefault(str(status), {"description": title})
    if title not in response["description"]:
        response["description"] += f"; {title}"
    example = {**problem.facts(problem.about)}
    response.setdefault("content", {})["application/problem+json"] = {"schema": _SCHEMA, "example": example}
    if status in (409, 503):
        response["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds"}}


def _add_refusals(operation: dict[str, Any]) -> None:
    for reason in Refusal:
        refused = FormRefused(reason)
        problem = ProblemType(f"form-{reason}", refused.status, refused.title, refused.message)
        _add(operation, refused.status, refused.title, problem)


def _add_field(operation: dict[str, Any], field: str) -> None:
    """Add the token's field to the form's schema, beside the fields that the handler reads."""
    token = {"type": "object", "properties": {field: {"type": "string", "title": "One-time token"}}}
    body = operation.setdefault("requestBody", {"content": {}})
    forms = [kind for kind in CONTENT_TYPES if kind in body["content"]] or CONTENT_TYPES[:1]
    for kind in forms:
        given = body["content"].get(kind, {}).get("schema")
        body["content"][kind] = {"schema": token if given is None else {"allOf": [given, token]}}
