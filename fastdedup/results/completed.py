"""The results of `complete`: JSON, whose reader names the type later, or never."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import operator
import typing
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time
from typing import Any, Final

import orjson

from ..codec import ONE_WAY, WIDE, extra_is_missing, has_nan
from ..errors import error_text
from .readers import JSON, reader_of
from .values import SCALARS, attributes, is_plain, same


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
    if payload.endswith(WIDE):
        if is_plain(result) and has_nan(result):  # other values need a type, whose reader brings NaN back
            raise ValueError("NaN and infinity are not JSON")
        # It also raises ValueError if Python's reader refuses so long an integer.
        _CHECK.decode(payload.decode())
    return payload if _comes_back(result) else payload + ONE_WAY


def _check_names(pairs: list[tuple[str, Any]]) -> None:
    """Raise ValueError if two keys of a dict, such as 1 and "1", have the same name in JSON."""
    if len(dict(pairs)) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"two of its keys are written as {max(names, key=names.count)!r}")


_CHECK: Final = json.JSONDecoder(object_pairs_hook=_check_names)


def _moment(value: Any) -> str:
    """Return the text of a time for orjson, which would round the seconds of its offset from UTC.

    Raises:
        TypeError: it is no time, or its text does not have all of it.
    """
    if type(value) not in (date, datetime, time) or _loses_zone(value):
        raise TypeError
    return str(value.isoformat())


def _loses_zone(value: Any) -> bool:
    """True for a time with more than JSON has: digits, and the hours and minutes of an offset.

    Most zones' times before 1900 have seconds in their offset; a time without an offset has a fold, or a zone's name.
    """
    if not isinstance(value, datetime | time):
        return False
    offset = value.utcoffset()
    if offset is None:
        return value.fold == 1 or value.tzinfo is not None
    return offset.seconds % 60 != 0 or offset.microseconds != 0


def _json(value: Any, refusal: type[Exception] = TypeError) -> bytes:
    """Return JSON, also for what orjson refuses by this error: a Pydantic model, a Decimal, a set and others."""
    try:
        return JSON.dumps(value)
    except refusal as error:
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
        found = reader_of(list.__class_getitem__(kind)).read(_json(those, Exception), "")
        names = _compared(kind, own=_facts(kind)[1])
    except Exception:  # noqa: BLE001 -- by the user's own code, or `replay` will raise it, too
        return True
    for are_equal in (operator.eq, same):
        with contextlib.suppress(Exception):  # by an `__eq__` of the user's own
            if are_equal(*([_contents(each, names) for each in values] for values in (found, those))):
                return True
    return False


def _contents(value: Any, names: Sequence[str] | None = None) -> Any:
    """Return what must be equal of a value, whose own `__eq__` may leave out some. `names`: see `_compared`."""
    if type(value) in SCALARS:
        return value
    if isinstance(value, datetime | time):
        return value, value.tzinfo is None and (value.fold,)
    if isinstance(value, dict):
        return {key: _contents(each) for key, each in value.items()}
    if isinstance(value, list | tuple | deque):
        return [type(value), *map(_contents, value)]
    kind: Any = type(value)
    names = _compared(kind) if names is None else names
    # A field that is not set counts as `...`, which JSON does not have.
    return [_contents(getattr(value, name, ...)) for name in names] if names else value


@functools.lru_cache(maxsize=1024)
def _compared(kind: Any, own: bool = False) -> list[str]:
    """Return what a dataclass or model compares unless it has an `__eq__` of its own: its class and fields.

    `own`: without the fields whose types depend on the parameters of a generic class.
    """
    if dataclasses.is_dataclass(kind):
        names = [each.name for each in dataclasses.fields(kind) if each.compare]
    elif hasattr(kind, "__pydantic_validator__"):
        names = [*kind.model_fields, "__pydantic_extra__", "__pydantic_private__"]
    else:
        return []
    hints = typing.get_type_hints(kind) if own else {}
    return ["__class__", *(name for name in names if not _facts(hints.get(name))[1])]


def _with_fields(value: Any) -> Iterator[Any]:
    """Yield the parts of a value that their JSON may not bring back.

    They are dataclasses, models, values with a schema of their own, and times with more than JSON has.
    """
    if isinstance(value, dict):
        parts: Any = (*value, *value.values())
    elif isinstance(value, list | tuple | set | frozenset | deque):
        parts = value
    else:
        kind: Any = type(value)
        has_fields, is_generic = _facts(kind)
        if has_fields or _loses_zone(value):
            yield value
        if not is_generic:
            return
        parts = attributes(value).values()  # its reader may name the types that they are of
    for each in parts:
        yield from _with_fields(each)


@functools.lru_cache(maxsize=1024)
def _facts(kind: Any) -> tuple[bool, bool]:
    """Return whether a type has a schema of its own, and parameters. Pydantic's classes take long to answer."""
    has_schema = hasattr(kind, "__get_pydantic_core_schema__")
    is_generic = isinstance(kind, typing.TypeVar) or bool(getattr(kind, "__parameters__", ()))
    return has_schema or dataclasses.is_dataclass(kind), is_generic
