"""A request, as principal and fingerprint functions see it; and the fingerprint that is taken by default."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from ..errors import ConfigError
from .response import Headers

_BOUNDARY = re.compile(rb'boundary=(?:"([^"]+)"|([^";,\s]+))', re.IGNORECASE)


class RequestTooLarge(ValueError):
    """The body exceeds what is kept to tell requests apart."""


@dataclass(slots=True)
class Request:
    """One request with its whole body."""

    method: str
    path: str
    query: bytes
    headers: Headers
    body: bytes
    source: MutableMapping[str, Any]
    """The ASGI scope or WSGI environ: what middleware outside of this one has put there (`scope["user"]`)."""

    def header(self, name: str) -> str | None:
        """Return the first header of that name."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers if key == wanted), None)


Principal = Callable[[Request], str | None] | Callable[[Request], Awaitable[str | None]]
"""Names the caller whom a key belongs to (a tenant, an account), so that none sees another's result.

Name it wholly: where each tenant has users 1, 2, 3 of its own, the tenant as well. A digest of it is kept."""
Fingerprint = Callable[[Request], bytes]


def everyone(request: Request) -> None:
    """All callers share their keys: right where there is only one, or where keys cannot be guessed."""


def by_header(name: str) -> Callable[[Request], str | None]:
    """Tell callers apart by a header such as X-Api-Key; its digest is kept, as it may be a secret.

    Take what stays the same from a request to its retry: an access token that is refreshed in between
    makes another caller, and the retry would run again.
    """
    if not isinstance(name, str) or not name.isascii() or not name:
        raise ConfigError(f"by_header() takes the name of a header, not {name!r}")
    if "_" in name:  # servers drop such headers, or take them for those with hyphens
        raise ConfigError(f"by_header() takes a header's name as it is sent, with hyphens; not {name!r}")

    def principal(request: Request) -> str | None:
        value = request.header(name)
        return None if value is None else blake2b(value.encode(), digest_size=16).hexdigest()

    return principal


def request_fingerprint(request: Request) -> bytes:
    """Digest method, path, query and body.

    The boundary of a multipart body is left out: clients draw a new one when they encode a form again.
    """
    body = request.body
    parts = (request.method.encode(), request.path.encode("utf-8", "surrogateescape"), request.query)
    if body.startswith(b"--"):
        kind = request.header("content-type")
        if kind is not None and kind[:10].lower() == "multipart/":
            body = _without_boundary(kind.encode("latin-1"), body)
    lengths = b"%d %d %d\n" % tuple(map(len, parts))
    return blake2b(lengths + b"".join(parts) + body, digest_size=16, person=b"http").digest()


def _without_boundary(kind: bytes, body: bytes) -> bytes:
    found = _BOUNDARY.search(kind)
    return body if found is None else body.replace(b"--" + (found[1] or found[2]), b"--")
