"""The OpenAPI document, built from the table of routes and the models."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode

from ... import __version__
from ...web.problems import ProblemType
from ..limits import Limits
from . import models, problems
from .route import HttpRoute

_REF = "#/components/schemas/{model}"
_WITH_BODY = (
    problems.MALFORMED,
    problems.TIMEOUT,
    problems.TOO_LARGE,
    problems.MEDIA,
    problems.INVALID,
    problems.FOREIGN,
    problems.RESULT_TOO_LARGE,
)
_WITH_STORE = (problems.INVALID, problems.FOREIGN)
_ON_SOME_SOCKETS = (problems.FORBIDDEN, problems.QUOTA)
_ALWAYS = (problems.BAD_REQUEST, problems.HEADERS, problems.INTERNAL, problems.UNAVAILABLE)
_NAME = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "The ledger's name in the sidecar's settings.",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,64}$"},
}
_RETRY_AFTER = {
    "description": "Seconds after which another try makes sense, rounded up.",
    "schema": {"type": "integer", "minimum": 1},
}


def document(routes: Iterable[HttpRoute], limits: Limits) -> dict[str, Any]:
    """Return the document, in OpenAPI 3.1."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, limits, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fastdedup",
            "version": __version__,
            "description": "Are you the first? Answered once for each key. Times are whole milliseconds.",
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": dict(sorted(schemas.items()))},
    }


def _operation(route: HttpRoute, limits: Limits, schemas: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.method.lower() + re.sub("[{}]", "", re.sub("[/.]", "_", route.path)),
        "summary": route.summary,
        "responses": _responses(route, schemas),
    }
    if route.method == "POST":
        schema = _schema(route.body(limits.batch), schemas, "validation")
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    elif route.asks is not None:
        operation["parameters"] = list(_parameters(route.asks))
    if "{name}" in route.path:
        operation["parameters"] = [_NAME]
    return operation


def _parameters(model: type[BaseModel]) -> Iterable[dict[str, Any]]:
    schema = model.model_json_schema()
    for name, about in schema["properties"].items():
        required = name in schema.get("required", ())
        # A query has no null: a parameter is there or is missing.
        shape = about if required else about.get("anyOf", [about])[0]
        yield {"name": name, "in": "query", "required": required, "schema": shape}


def _responses(route: HttpRoute, schemas: dict[str, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, model in route.answers:
        content = (
            {"text/plain": {"schema": {"type": "string"}}}
            if model is None
            else {"application/json": {"schema": _schema(model, schemas, "serialization")}}
        )
        responses[str(status)] = {
            "description": "Done." if status < 300 else "Not ready.",
            "content": content,
        }
    for problem in _problems_of(route):
        _describe(responses, problem, route, schemas)
    return dict(sorted(responses.items()))


def _problems_of(route: HttpRoute) -> list[ProblemType]:
    common = _WITH_BODY if route.method == "POST" else _WITH_STORE if route.asks is not None else ()
    ruled = _ON_SOME_SOCKETS if route.verb else ()
    return list(dict.fromkeys((*route.problems, *common, *ruled, *_ALWAYS)))


def _describe(
    responses: dict[str, Any], problem: ProblemType, route: HttpRoute, schemas: dict[str, Any]
) -> None:
    """Add a problem to the responses; several problems may share a status."""
    shaped = problem in problems.OF_CLAIM
    schema = _schema(route.shaped if shaped else models.Problem, schemas, "serialization")
    response = responses.setdefault(str(problem.status), {"description": "", "content": {}})
    response["description"] = " ".join(filter(None, (response["description"], f"{problem.title}.")))
    content = response["content"].setdefault("application/problem+json", {"schema": {"anyOf": []}})
    if schema not in content["schema"]["anyOf"]:
        content["schema"]["anyOf"].append(schema)
    if problem in problems.WITH_RETRY:
        response["headers"] = {"Retry-After": _RETRY_AFTER}


def _schema(model: Any, schemas: dict[str, Any], mode: JsonSchemaMode) -> dict[str, Any]:
    """Return a model's schema; add the schemas that it refers to to those of the document."""
    schema = TypeAdapter(model).json_schema(ref_template=_REF, mode=mode, schema_generator=_Plain)
    schemas.update(schema.pop("$defs", {}))
    title = schema.get("title")
    if schema.get("type") != "object" or title is None:
        return schema
    schemas[title] = schema
    return {"$ref": _REF.format(model=title)}


class _Plain(GenerateJsonSchema):
    """Makes schemas without a title for each field, which would only repeat the field's name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return False (pydantic calls this)."""
        return False
