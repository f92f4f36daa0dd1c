"""Reads bodies and queries strictly: a name that is given twice is refused. Parsers disagree on which one counts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel

from . import problems
from .problems import RequestProblem

_stands_apart = re.compile(rb"[ \t\n\r]:").search
"""Find a colon with space before it: that of a name, perhaps."""


class _Pairs(list[tuple[str, Any]]):
    """The members of an object, in order."""


def parse_once(check: Callable[[bytes], Any], body: bytes) -> Any:
    """Return a body as its model, which `check` makes.

    Raises:
        RequestProblem: a name is given twice.
    """
    ask = check(body)
    if not are_unique(body, len(ask.__pydantic_fields_set__)):
        refuse_repeats(body)
    return ask


def are_unique(body: bytes, names: int) -> bool:
    """True if a body surely has no name twice: it has as many names as its models have fields that are set.

    A quote and a colon follow each name. Sometimes they follow other text too, and a result has names of its own.
    Then this is False, and `refuse_repeats` looks closely, at eight times the cost.
    """
    return body.count(b'":') == names and _stands_apart(body) is None


def refuse_repeats(body: bytes) -> None:
    """Look at each name of an operation, or of a batch of operations; values may hold what they like.

    Raises:
        RequestProblem: a name is given twice.
    """
    found = json.loads(body, object_pairs_hook=_Pairs)
    for operation in [found] if type(found) is _Pairs else found:
        seen: set[str] = set()
        for name, _ in operation:
            if name in seen:
                raise RequestProblem(problems.INVALID, f"'{name}' is given twice: give it once")
            seen.add(name)


# Queries, whose parameters are read just as strictly as a body

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
