"""What a handler returns, as JSON that the gate or the inbox keeps for duplicates."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

from faststream import Response

_BODY = "body"
_BYTES = "bytes"
_HEADERS = "headers"


def kept(result: Any) -> dict[str, Any]:
    """Return what is kept of a result: the body that is published, and the headers of a `Response`."""
    if isinstance(result, Response):
        return {**kept(result.body), _HEADERS: result.headers}
    if isinstance(result, bytes):
        return {_BYTES: b64encode(result).decode()}
    return {_BODY: _plain(result)}


def restored(record: Any) -> Any:
    """Return the result again: a model comes back as the JSON that it was published as."""
    body = b64decode(record[_BYTES]) if _BYTES in record else record[_BODY]
    return Response(body, headers=record[_HEADERS]) if _HEADERS in record else body


def _plain(result: Any) -> Any:
    """Turn the models of pydantic, at any depth, into JSON values."""
    if hasattr(result, "model_dump"):
        return result.model_dump(mode="json")
    if isinstance(result, dict):
        return {name: _plain(value) for name, value in result.items()}
    if isinstance(result, list | tuple):
        return [_plain(value) for value in result]
    return result
