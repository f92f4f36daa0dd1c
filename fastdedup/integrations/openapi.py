"""Completes an OpenAPI document for claimed operations: their header, their form field, their problems."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..gate.settings import Settings
from ..web import problems
from ..web.forms import FormRefused, Refusal
from ..web.header import DRAFT
from ..web.problems import ProblemType

if TYPE_CHECKING:
    from fastapi import FastAPI

MARK = "x-fastdedup"
"""The key of a header parameter's schema under which its facts are."""
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_OF_CLAIMS = [
    problems.KEY_MISSING,
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


def describe(app: FastAPI, settings: Settings) -> None:
    """Have the application's OpenAPI document completed whenever it is made."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = make()
            for operation in _operations(schema):
                _complete(operation, settings)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _operations(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in schema.get("paths", {}).values():
        yield from (operation for operation in path.values() if isinstance(operation, dict))


def _complete(operation: dict[str, Any], settings: Settings) -> None:
    for parameter in operation.get("parameters", ()):
        mark = parameter.get("schema", {}).pop(MARK, None)
        if mark is None:
            continue
        if "field" in mark:
            parameter["description"] = (
                f"The one-time token, where it is not the form's field {mark['field']!r}."
            )
            _add_field(operation, mark["field"])
            _add_refusals(operation)
        else:
            parameter["required"] = mark["required"]
            parameter["description"] = _about(mark, settings)
            for problem in _OF_CLAIMS:
                _add(operation, problem.status, problem.title, problem)


def _about(mark: dict[str, Any], settings: Settings) -> str:
    ttl = settings.ttl if mark.get("ttl") is None else mark["ttl"]
    waits = f" It waits {mark['wait']:g} s for a response in flight." if mark.get("wait") else ""
    return (
        "A new UUID for each new request, the same one for each retry of it: the operation happens once, and its "
        f"response is repeated for {ttl:g} s, with Idempotency-Replayed: true.{waits} See {DRAFT}."
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
    forms = [kind for kind in _FORMS if kind in body["content"]] or _FORMS[:1]
    for kind in forms:
        given = body["content"].get(kind, {}).get("schema")
        body["content"][kind] = {"schema": token if given is None else {"allOf": [given, token]}}
