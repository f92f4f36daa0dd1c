"""Turns results into bytes: with orjson into JSON, or with a codec of the user."""

from __future__ import annotations

import functools
import inspect
import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final, Protocol, runtime_checkable

import orjson

from .errors import ConfigError, DedupError, ResultError, ResultTooLargeError, error_text


@runtime_checkable
class Codec(Protocol):
    """Turns results into bytes and back. `None` never reaches a codec: it is stored without any bytes."""

    def dumps(self, value: Any) -> bytes:
        """Encode a value in one byte or more; raise TypeError or ValueError if that is not possible."""
        ...

    def loads(self, data: bytes) -> Any:
        """Decode the bytes that `dumps` has made."""
        ...


UNSTORABLE = "the work is done, and its result cannot be stored"
"""The message of an error that is recorded in place of a result."""
_TEXT_LIMIT = 8
"""A character takes at most 6 bytes of JSON: a text of an eighth of the limit fits."""


class JSONCodec:
    """Uses orjson: for JSON values, and for dataclasses, datetimes, UUIDs and enums, which come back as JSON."""

    def dumps(self, value: Any) -> bytes:
        """Encode. orjson would turn NaN into null, and a duplicate would get another result than the first."""
        encoded = orjson.dumps(value, _attributes, orjson.OPT_PASSTHROUGH_DATACLASS)
        if b"null" in encoded and has_nan(value, _attributes):
            raise ValueError("NaN and infinity are not JSON")
        return encoded

    # Not a method, to save a Python call: decoding is most of the cost of a known duplicate.
    loads = staticmethod(orjson.loads)


Attributes = Callable[[Any], dict[str, Any]]


def has_nan(value: Any, attributes: Attributes | None = None) -> bool:
    """True if a value that orjson has encoded holds a NaN or an infinity.

    `attributes`: returns those of a dataclass that were encoded; by default orjson's own.
    """
    attributes = attributes or _public_attributes
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Enum):
        return has_nan(value.value, attributes)
    if isinstance(value, dict):
        return any(has_nan(item, attributes) for item in value.values())
    if isinstance(value, list | tuple):
        return any(has_nan(item, attributes) for item in value)
    if isinstance(value, orjson.Fragment):
        return False  # JSON that the user wrote: nothing in it was replaced
    if is_dataclass(value):
        return has_nan(attributes(value), attributes)
    return False


def _public_attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of a dataclass that orjson writes: fields and others, but none that begins with "_"."""
    names = vars(value) if hasattr(value, "__dict__") else [field.name for field in fields(value)]
    return {name: getattr(value, name) for name in names if not name.startswith("_")}


def _attributes(value: Any) -> dict[str, Any]:
    """Return what orjson writes of a dataclass, and the arguments of its constructor that orjson leaves out."""
    if "__dataclass_fields__" not in type(value).__dict__:
        raise TypeError  # no dataclass for orjson; its own error names the type
    kind: Any = type(value)
    return _public_attributes(value) | {name: getattr(value, name) for name in _left_out(kind)}


@functools.lru_cache(maxsize=256)
def _left_out(kind: Any) -> list[str]:
    """Return the arguments of a dataclass that begin with "_" or are in slots, such as those of a base class.

    Fields that are no arguments, such as a cache or a lock, stay left out: no reader could give them back.
    """
    return [
        field.name
        for field in fields(kind)
        if field.init
        and (field.name.startswith("_") or inspect.ismemberdescriptor(getattr(kind, field.name, 0)))
    ]


# A tuple, because it is made for each result: an `__init__` would cost a call.
class Encoded(tuple[bytes]):
    """A result that is encoded already: its payload alone."""

    __slots__ = ()


WIDE: Final = b"\n"
"""Ends the JSON of a result that a type reads, or Python's own reader, which keeps integers over 64 bits."""
WIDE_PLAIN: Final = b" " + WIDE
"""Ends it if no type is needed to read it."""
ONE_WAY: Final = b"\t" + WIDE
"""Ends it if the type of the result would read another value: only its JSON comes back."""
_END_OF_WIDE: Final = WIDE[0]


def extra_is_missing(what: str) -> ConfigError:
    """Return the error for a type that needs pydantic."""
    return ConfigError(
        f"{what} needs pydantic: pip install 'fastdedup[types]', or use JSON values, or give codec="
    )


def encode(codec: Codec, value: Any, limit: int, json_of: Callable[[Any], bytes] | None = None) -> bytes:
    """Return the payload for a result. `json_of`: makes JSON, in place of `JSONCodec`, if no other codec is given.

    Raises:
        ResultError: the codec cannot encode the value, or returns no bytes, which mean None.
        ResultTooLargeError: the payload has more than `limit` bytes.
    """
    if value is None:
        return b""
    if type(value) is Encoded:
        (encoded,) = value
        check_size(encoded, limit)
        return encoded
    try:
        payload = json_of(value) if json_of and type(codec) is JSONCodec else codec.dumps(value)
    except (ResultError, ResultTooLargeError):
        raise
    except Exception as error:  # any error of a codec becomes one error for callers
        what, way = "a result", "return JSON-able data, or give Dedup a codec= that knows the type"
        if codec is _ERRORS:
            what, way = "an error", "give fail() an exception or JSON values: errors do not use codec="
        raise ResultError(
            f"cannot store {what} of type {type(value).__name__}: {error_text(error)}; {way}"
        ) from error
    if not isinstance(payload, bytes):
        raise ResultError(f"the codec's dumps() must return bytes, it returned {type(payload).__name__}")
    if not payload:
        raise ResultError(
            f"the codec's dumps() made no bytes of a result of type {type(value).__name__}, and those are None to "
            "duplicates: let dumps() return one byte at least"
        )
    check_size(payload, limit)
    return payload


def check_size(payload: bytes, limit: int) -> None:
    """Raise ResultTooLargeError if a payload has more than `limit` bytes."""
    if len(payload) > limit:
        raise ResultTooLargeError(
            f"the result takes {len(payload)} bytes, the limit is {limit}; "
            "store it elsewhere and complete with a reference, or raise max_result="
        )


def decode(codec: Codec, payload: bytes, key: str) -> Any:
    """Return the result of a payload; `key` is the key that holds it.

    Raises:
        ResultError: the codec cannot read it. The message names the key and never shows the content.
        DedupError: another error of this library that the codec's `loads()` raises.
    """
    if not payload:
        return None
    try:
        if payload[-1] == _END_OF_WIDE and type(codec) is JSONCodec:
            return json.loads(payload)
        return codec.loads(payload)
    except DedupError:
        raise
    except Exception as error:  # noqa: BLE001 -- any error of a codec becomes one error for callers to handle
        kind = type(error).__name__
    # Outside of the except clause, because the codec's error may hold the content.
    raise ResultError(
        f"cannot read the result of {len(payload)} bytes under {key!r}: loads() of {type(codec).__name__} "
        f"raised {kind}, so another codec has stored it: give Dedup that codec=; a web key's response is shown by "
        "get_request of fastdedup.web.inspection. Forget the key only to let its work run again"
    )


# Errors


def stores_errors(codec: Codec) -> bool:
    """True for a codec of this library that stores errors like results: web responses, a sidecar's bytes."""
    return bool(getattr(codec, "stores_errors", False))


def described(error: Any) -> Any:
    """Return the type's name and the text of an exception, in a form for JSON; any other error unchanged.

    The text comes from the user's code: if that code raises, the error is still recorded.
    """
    if not isinstance(error, BaseException):
        return error
    kind, text = type(error).__name__, error_text(error)
    return {"type": _plain(kind), "message": _plain(text)}


def is_unstorable(error: Any) -> bool:
    """True for an error that replaces a result that cannot be stored: the work is done."""
    return isinstance(error, dict) and error.get("message") == UNSTORABLE


def _plain(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def encode_error(codec: Codec, error: Any, limit: int) -> bytes:
    """Return the payload for an error: JSON, for every codec of the results.

    The text of an exception is cut to fit.

    Raises:
        ResultError: the error is not an exception, and JSON cannot hold it.
        ResultTooLargeError: the error is not an exception, and its payload has more than `limit` bytes.
    """
    if stores_errors(codec):
        return encode(codec, described(error), limit)
    if not isinstance(error, BaseException):
        return encode(_ERRORS, error, limit)
    facts = described(error)
    try:
        return encode(_ERRORS, facts, limit)
    except ResultTooLargeError:
        facts["message"] = facts["message"][: limit // _TEXT_LIMIT]
    try:
        return encode(_ERRORS, facts, limit)
    except ResultTooLargeError:
        return b""


def decode_error(codec: Codec, payload: bytes, key: str) -> Any:
    """Return the error of a payload. Errors: see `decode`.

    Version 0.1.0 stored errors with the codec of the results. A payload that is not JSON is such an error.
    """
    if payload and not stores_errors(codec):
        with suppress(ValueError, RecursionError):
            return json.loads(payload) if payload[-1] == _END_OF_WIDE else orjson.loads(payload)
    return decode(codec, payload, key)


_ERRORS = JSONCodec()
