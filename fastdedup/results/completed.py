"""The results of `complete`: JSON, whose reader names the type later, or never."""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

import orjson

from ..codec import ONE_WAY, WIDE, extra_is_missing, has_nan
from ..errors import error_text
from .readers import JSON, reader_of
from .values import attributes, same


def completed_json(result: Any) -> bytes:
    """Return the JSON of a result of `complete`, which ends with `ONE_WAY` if its type would read another value.

    Raises:
        TypeError, ValueError: JSON cannot hold it.
        any other error: the result's own code has raised it.
    """
    try:
        payload = orjson.dumps(result, None, orjson.OPT_PASSTHROUGH_DATACLASS)
        if b"null" not in payload or not has_nan(result):
            return payload  # it has no type of the user's own
    except TypeError:
        pass
    payload = _json(result)
    return payload if _comes_back(result) else payload + ONE_WAY


def _json(value: Any) -> bytes:
    """Return JSON, also for what orjson does not know: a Pydantic model, a Decimal, a set, bytes and others."""
    try:
        return JSON.dumps(value)
    except TypeError as error:
        try:
            from pydantic_core import to_json
        except ImportError:
            missing = extra_is_missing(f"a result of type {type(value).__name__}")
            raise TypeError(f"{error_text(error)}; {missing}") from error
    return to_json(value, round_trip=True, bytes_mode="base64", inf_nan_mode="strings") + WIDE


def _comes_back(value: Any) -> bool:
    """True if no dataclass or model in a value would read its own JSON as another value; also if that is unknown."""
    kinds: defaultdict[Any, list[Any]] = defaultdict(list)
    try:
        for each in _with_fields(value):
            kinds[type(each)].append(each)
        for kind, those in kinds.items():
            found = reader_of(list.__class_getitem__(kind)).read(_json(those), "")
            if found != those and not same(found, those):
                return False
    except Exception:  # noqa: BLE001 -- by the user's own code, or `replay` will raise it, too
        pass
    return True


def _with_fields(value: Any) -> Iterator[Any]:
    """Yield the dataclasses, models and values with a schema of their own in a value."""
    if isinstance(value, dict):
        parts: Any = value.values()
    elif isinstance(value, list | tuple | set | frozenset | deque):
        parts = value
    else:
        kind: Any = type(value)
        has_fields, is_generic = _facts(kind)
        if not has_fields:
            return
        if not is_generic:
            yield value
            return
        parts = attributes(value).values()  # its reader may name the types that they are of
    for each in parts:
        yield from _with_fields(each)


@functools.lru_cache(maxsize=1024)
def _facts(kind: Any) -> tuple[bool, bool]:
    """Return whether a class has a schema of its own, and parameters. Pydantic's classes take long to answer."""
    has_schema = hasattr(kind, "__get_pydantic_core_schema__")
    return has_schema or dataclasses.is_dataclass(kind), bool(getattr(kind, "__parameters__", ()))
