"""How results become bytes: JSON by orjson, or a codec of the user's own."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any, Protocol, runtime_checkable

import orjson

from .errors import ResultError, ResultTooLargeError


@runtime_checkable
class Codec(Protocol):
    """Turns results into bytes and back. `None` never reaches it: it is stored as no bytes at all."""

    def dumps(self, value: Any) -> bytes:
        """Encode; raise TypeError for what cannot be."""
        ...

    def loads(self, data: bytes) -> Any:
        """Decode what `dumps` made."""
        ...


class JSONCodec:
    """orjson: JSON values, also dataclasses, datetimes, UUIDs and enums (which come back as JSON)."""

    def dumps(self, value: Any) -> bytes:
        """Encode. orjson would turn NaN into null, and a duplicate would get another result than the first."""
        encoded = orjson.dumps(value)
        if b"null" in encoded and has_nan(value):
            raise ValueError("NaN and infinity are not JSON")
        return encoded

    # Decoding a replay is most of what a known duplicate costs: no Python frame in between.
    loads = staticmethod(orjson.loads)


def has_nan(value: Any) -> bool:
    """True where a JSON-able value holds a NaN or an infinity."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(has_nan(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(has_nan(item) for item in value)
    if is_dataclass(value):
        return any(has_nan(getattr(value, field.name)) for field in fields(value))
    return False


def encode(codec: Codec, value: Any, limit: int) -> bytes:
    """Return the payload for a result.

    Raises:
        ResultError: the codec cannot encode it.
        ResultTooLargeError: more than `limit` bytes.
    """
    if value is None:
        return b""
    try:
        payload = codec.dumps(value)
    except (TypeError, ValueError) as error:
        raise ResultError(
            f"cannot store a result of type {type(value).__name__}: {error}; "
            "return JSON-able data, or give Dedup a codec= that knows the type"
        ) from error
    if not isinstance(payload, bytes):
        raise ResultError(f"the codec's dumps() must return bytes, it returned {type(payload).__name__}")
    check_size(payload, limit)
    return payload


def check_size(payload: bytes, limit: int) -> None:
    """Raise ResultTooLargeError where a payload has more than `limit` bytes."""
    if len(payload) > limit:
        raise ResultTooLargeError(
            f"the result takes {len(payload)} bytes, the limit is {limit}; "
            "store it elsewhere and complete with a reference, or raise max_result="
        )


def decode(codec: Codec, payload: bytes) -> Any:
    """Return the result that a payload stands for."""
    return codec.loads(payload) if payload else None
