"""How results become bytes: JSON by orjson, or a codec of the user's own."""

from __future__ import annotations

from typing import Any, Protocol

import orjson

from .errors import ResultError, ResultTooLargeError


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
        """Encode."""
        return orjson.dumps(value)

    def loads(self, data: bytes) -> Any:
        """Decode."""
        return orjson.loads(data)


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
    if len(payload) > limit:
        raise ResultTooLargeError(
            f"the result takes {len(payload)} bytes, the limit is {limit}; "
            "store it elsewhere and complete with a reference, or raise max_result="
        )
    return payload


def decode(codec: Codec, payload: bytes) -> Any:
    """Return the result that a payload stands for."""
    return codec.loads(payload) if payload else None
