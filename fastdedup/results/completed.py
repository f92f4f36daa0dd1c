"""The results of `complete`: JSON, whose reader names the type later, or never."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import operator
import re
from collections import defaultdict, deque
from collections.abc import Iterator
from datetime import date, datetime, time
from typing import Any, Final

import orjson

from ..codec import ONE_WAY, WIDE, extra_is_missing, has_nan
from ..errors import error_text
from .readers import JSON, reader_of
from .values import attributes, same

_LONG_NUMBER: Final = re.compile(rb"[0-9]{641}")
"""More digits than any Python reads without a limit; they may be text."""


def completed_json(result: Any) -> bytes:
    """Return the JSON of a result of `complete`, which ends with `ONE_WAY` if its type would read another value.

    Raises:
        TypeError, ValueError: JSON cannot hold it.
        any other error: the result's own code has raised it.
    """
    try:
        payload = orjson.dumps(
            result, _moment, orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
        )
        if b"null" not in payload or not has_nan(result):
            return payload  # it has no type of the user's own
    except TypeError:
        pass
    payload = _json(result)
    if _LONG_NUMBER.search(payload):
        json.loads(payload)  # raises ValueError if Python's reader refuses so long an integer
    return payload if _comes_back(result) else payload + ONE_WAY


def _moment(value: Any) -> str:
    """Return the text of a time for orjson, which would round the seconds of its offset from UTC.

    Raises:
        TypeError: it is no time, or has such seconds.
    """
    if type(value) not in (date, datetime, time) or _has_seconds_in_offset(value):
        raise TypeError
    return str(value.isoformat())


def _has_seconds_in_offset(value: Any) -> bool:
    """True for most zones' times before 1900. JSON has only the hours and minutes of an offset."""
    offset = value.utcoffset() if isinstance(value, datetime | time) else None
    return offset is not None and (offset.seconds % 60 != 0 or offset.microseconds != 0)


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
    """True if no part of a value with a type of its own would be read as another value; also if that is unknown."""
    kinds: defaultdict[Any, list[Any]] = defaultdict(list)
    try:
        for each in _with_fields(value):
            kinds[type(each)].append(each)
    except Exception:  # noqa: BLE001 -- by the user's own code
        return True
    return all(map(_are_read, kinds, kinds.values()))


def _are_read(kind: Any, those: list[Any]) -> bool:
    """True if values of one type are read as equal ones; also if `replay` will raise an error."""
    try:
        found = reader_of(list.__class_getitem__(kind)).read(_json(those), "")
    except Exception:  # noqa: BLE001 -- by the user's own code, or `replay` will raise it, too
        return True
    for are_equal in (operator.eq, same):
        with contextlib.suppress(Exception):  # an `__eq__` may need what was not read
            if are_equal(found, those):
                return True
    return False


def _with_fields(value: Any) -> Iterator[Any]:
    """Yield the parts of a value that their JSON may not bring back.

    They are dataclasses, models, values with a schema of their own, and times with seconds in their offset.
    """
    if isinstance(value, dict):
        parts: Any = value.values()
    elif isinstance(value, list | tuple | set | frozenset | deque):
        parts = value
    else:
        kind: Any = type(value)
        has_fields, is_generic = _facts(kind)
        if not has_fields:
            if _has_seconds_in_offset(value):
                yield value
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
