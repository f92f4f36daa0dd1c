"""How results become bytes: JSON by orjson, or a codec of the user's own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Protocol, runtime_checkable

import orjson

from .errors import DedupError, ResultError, ResultTooLargeError, error_text


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
    """Uses orjson: JSON values, and dataclasses, datetimes, UUIDs and enums, which come back as JSON."""

    def dumps(self, value: Any) -> bytes:
        """Encode. orjson would turn NaN into null, and a duplicate would get another result than the first."""
        encoded = orjson.dumps(value)
        if b"null" in encoded and has_nan(value):
            raise ValueError("NaN and infinity are not JSON")
        return encoded

    # Not a method, to save a Python call: decoding is most of the cost of a known duplicate.
    loads = staticmethod(orjson.loads)


def has_nan(value: Any) -> bool:
    """True where a value that orjson has encoded holds a NaN or an infinity."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Enum):
        return has_nan(value.value)
    if isinstance(value, dict):
        return any(has_nan(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(has_nan(item) for item in value)
    if isinstance(value, orjson.Fragment):
        return False  # JSON that its author wrote: nothing in it was replaced
    if is_dataclass(value):
        return any(has_nan(item) for item in _attributes(value))
    return False


def _attributes(value: Any) -> Iterator[Any]:
    """Yield the attributes of a dataclass that orjson writes: also other than fields, but none with a "_" first."""
    names = vars(value) if hasattr(value, "__dict__") else [field.name for field in fields(value)]
    return (getattr(value, name) for name in names if not name.startswith("_"))


def encode(codec: Codec, value: Any, limit: int) -> bytes:
    """Return the payload for a result.

    Raises:
        ResultError: the codec cannot encode the value, or makes no bytes of it, which stand for None.
        ResultTooLargeError: the payload has more than `limit` bytes.
    """
    if value is None:
        return b""
    try:
        payload = codec.dumps(value)
    except DedupError:
        raise
    except Exception as error:  # whatever a codec raises, callers handle one error
        raise ResultError(
            f"cannot store a result of type {type(value).__name__}: {error_text(error)}; "
            "return JSON-able data, or give Dedup a codec= that knows the type"
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
    """Raise ResultTooLargeError where a payload has more than `limit` bytes."""
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
    """True for a codec of this library that stores errors as it stores results: web responses, a sidecar's bytes."""
    return bool(getattr(codec, "stores_errors", False))


def described(error: Any) -> Any:
    """Return the type's name and the text of an exception, as JSON can hold them; any other error as it is.

    The text comes from the user's code: if that raises, the error is recorded all the same.
    """
    if not isinstance(error, BaseException):
        return error
    kind, text = type(error).__name__, error_text(error)
    return {"type": _plain(kind), "message": _plain(text)}


def is_unstorable(error: Any) -> bool:
    """True for an error that stands in place of a result that cannot be stored: the work is done."""
    return isinstance(error, dict) and error.get("message") == UNSTORABLE


def _plain(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def encode_error(codec: Codec, error: Any, limit: int) -> bytes:
    """Return the payload for an error: JSON, whatever the codec of the results is.

    The text of an exception is cut to fit.

    Raises:
        ResultError: the error is no exception, and JSON cannot hold it.
        ResultTooLargeError: the error is no exception, and its payload has more than `limit` bytes.
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
    """Return the error of a payload; raises as `decode`.

    Version 0.1.0 has stored errors by the codec of the results. What is not JSON is one of these.
    """
    if payload and not stores_errors(codec):
        try:
            return orjson.loads(payload)
        except orjson.JSONDecodeError:
            pass
    return decode(codec, payload, key)


_ERRORS = JSONCodec()
