"""Values: which ones are JSON by themselves, and whether two are the same."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import types
from collections import defaultdict, deque
from collections.abc import Iterable
from datetime import datetime, time
from decimal import Decimal
from enum import Enum
from itertools import chain
from typing import Any, Final

import orjson

from ..checks import with_article
from ..codec import WIDE_PLAIN, has_nan
from ..errors import ResultError

SCALARS: Final = frozenset({str, int, float, bool, types.NoneType})
"""Types without parts that JSON has."""
_ANOTHER_TYPE: Final = "JSON would bring it back as another type, or not at all"


def is_plain(value: Any) -> bool:
    """True if JSON brings this very value back: None, str, int, float, bool, and lists and dicts of these.

    Keys are not looked at, because orjson refuses other keys than text.
    """
    kind = type(value)
    parts = value.values() if kind is dict else value if kind is list else None
    if parts is None:
        return kind in SCALARS
    # A set of types costs a tenth of a call for each part; the values of many dicts are judged as one.
    if SCALARS.issuperset(map(type, parts)):
        return True
    if kind is list and {*map(type, parts)} == {dict}:
        values = chain.from_iterable(map(dict.values, parts))
        if SCALARS.issuperset(map(type, values)):
            return True
    return all(map(is_plain, parts))


def plain_json(value: Any) -> bytes:
    """Return the JSON of a plain value; an integer may be over 64 bits.

    Raises:
        ResultError: the value is not plain, or JSON does not have it: NaN, or text that UTF-8 cannot encode.
    """
    try:
        if not is_plain(value):
            raise ResultError(_ANOTHER_TYPE)
        encoded = orjson.dumps(value)
    except ResultError:
        raise
    except (TypeError, RecursionError):
        return _json_of_large_integers(value)
    if b"null" in encoded and has_nan(value):
        raise ResultError("NaN and infinity are not JSON")
    return encoded


def _json_of_large_integers(value: Any) -> bytes:
    """Return the JSON of a value that orjson refuses, if it is plain."""
    try:
        if not (is_plain(value) and _has_text_keys(value)):
            raise ResultError(_ANOTHER_TYPE)
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode() + WIDE_PLAIN
    except (ValueError, RecursionError) as error:
        raise ResultError(f"it is no JSON ({type(error).__name__})") from None


def _has_text_keys(value: Any) -> bool:
    if type(value) is dict:
        return {*map(type, value)} <= {str} and all(map(_has_text_keys, value.values()))
    return type(value) is not list or all(map(_has_text_keys, value))


def same(one: Any, other: Any) -> bool:
    """True if two values have equal types and contents, at all depths; NaN is equal to NaN.

    Times are equal if they have the same digits and the same offset from UTC: a zone's name is not kept. What `==`
    leaves out counts, too: the fold of a time without an offset, a deque's `maxlen`, a defaultdict's factory.
    """
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is float or kind is complex:
        return repr(one) == repr(other)
    if kind is Decimal:
        return bool(one.as_tuple() == other.as_tuple())
    if isinstance(one, datetime | time):
        return _digits(one) == _digits(other) and one.utcoffset() == other.utcoffset()
    if isinstance(one, Enum):
        return one is other
    has_fields = dataclasses.is_dataclass(one) or hasattr(kind, "__pydantic_validator__")
    if has_fields and not same(attributes(one), attributes(other)):
        return False
    if isinstance(one, defaultdict) and one.default_factory is not other.default_factory:
        return False
    if isinstance(one, deque) and one.maxlen != other.maxlen:
        return False
    if isinstance(one, dict):
        return len(one) == len(other) and _are_same(one, one, {key: key for key in other}, other)
    if isinstance(one, set | frozenset):
        found = {each: each for each in other}
        return len(one) == len(other) and _are_same(one, found, found, found)
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(map(same, one, other))
    return has_fields or bool(one == other)


def difference(one: Any, other: Any) -> str:
    """Return the path of a difference, for an error, such as " in .a[0].b, which would be a float"; "" if unknown."""
    path = ""
    while type(one) is type(other):
        mine, theirs = _parts(one), _parts(other)
        at = next((name for name in mine if name in theirs and not same(mine[name], theirs[name])), None)
        if at is None:
            break
        path += at
        one, other = mine[at], theirs[at]
    if not path:
        return ""
    is_other_type = type(one) is not type(other)
    return f" in {path}" + (
        f", which would be {with_article(type(other).__qualname__)}" if is_other_type else ""
    )


def _parts(value: Any) -> dict[str, Any]:
    """Return the parts of a value by the end of their paths. A key that may be content stays hidden."""
    if isinstance(value, dict):
        return {step(key): each for key, each in value.items()}
    if isinstance(value, list | tuple):
        return {step(index): each for index, each in enumerate(value)}
    if dataclasses.is_dataclass(value) or hasattr(type(value), "__pydantic_validator__"):
        return {f".{name}": each for name, each in attributes(value).items()}
    return {}


def step(key: Any) -> str:
    """Return a step of a path: an attribute's name, an index, or "[…]" for a text that may be content."""
    if type(key) is int:
        return f"[{key}]"
    return f".{key}" if isinstance(key, str) and key.isidentifier() else "[…]"


def _digits(moment: datetime | time) -> tuple[bool, int, datetime | time]:
    """Return a time without its zone, whether it had one, and its fold if no offset says the same."""
    fold = moment.fold if moment.tzinfo is None else 0
    return moment.tzinfo is None, fold, moment.replace(tzinfo=None, fold=0)


def _are_same(keys: Iterable[Any], ours: Any, their_keys: Any, theirs: Any) -> bool:
    """True if each key, and each value under it, is there with the same type."""
    return all(
        key in their_keys
        and same(key, their_keys[key])
        and (ours is theirs or same(ours[key], theirs[their_keys[key]]))
        for key in keys
    )


def attributes(value: Any) -> dict[str, Any]:
    """Return what makes up a dataclass or a model, without values that it has derived and cached."""
    kind: Any = type(value)
    found = dict(getattr(value, "__dict__", {}))
    if dataclasses.is_dataclass(value):
        names = [each.name for each in dataclasses.fields(value)]
        found |= {name: getattr(value, name) for name in names if hasattr(value, name)}
    for name in ("__pydantic_extra__", "__pydantic_private__"):
        found[name] = getattr(value, name, None) or None
    for name in _cached(kind):
        found.pop(name, None)
    return found


@functools.lru_cache(maxsize=1024)
def _cached(kind: Any) -> list[str]:
    """Return the names of the values that a class derives and caches."""
    return [
        name
        for name in dir(kind)
        if isinstance(inspect.getattr_static(kind, name, None), functools.cached_property)
    ]
