"""Reads a query's parameters just as strictly as a body."""

from __future__ import annotations

from typing import TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel

from . import problems
from .problems import RequestProblem

Model = TypeVar("Model", bound=BaseModel)
_MAX_PARAMETERS = 16


def parse_query(query: bytes, model: type[Model]) -> Model:
    """Return a query as its model.

    Raises:
        RequestProblem: it is not UTF-8, has too many parameters, or has one of them twice.
        ValidationError: the model refuses it.
    """
    try:
        pairs = parse_qsl(
            query.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MAX_PARAMETERS
        )
    except ValueError:
        raise RequestProblem(
            problems.INVALID, f"a query must be UTF-8 text with at most {_MAX_PARAMETERS} parameters"
        ) from None
    if len(dict(pairs)) < len(pairs):
        raise RequestProblem(problems.INVALID, "a parameter is given twice: give it once")
    return model.model_validate(dict(pairs))
