"""A request, as principal and fingerprint functions see it, and the default fingerprint."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import blake2b
from typing import Any, Literal
from uuid import UUID

from ..errors import ConfigError
from ..keys import Fingerprint
from .response import Headers

_BOUNDARY = re.compile(rb'boundary=(?:"([^"]+)"|([^";,\s]+))', re.IGNORECASE)


class RequestTooLarge(ValueError):
    """The request's body exceeds `max_request`."""


class PrincipalMissing(ValueError):
    """A request has a key, but the principal function names no caller whom the key belongs to."""


class Shared(Enum):
    """The principal of callers who share their keys."""

    EVERYONE = "everyone"


EVERYONE: Literal[Shared.EVERYONE] = Shared.EVERYONE
"""The value that `everyone` returns. A missing name is another thing: such a request is refused."""
Named = str | Literal[Shared.EVERYONE] | None
"""The value of a principal function: a name, `EVERYONE`, or None where it finds no caller."""


@dataclass(slots=True)
class Request:
    """A request with its whole body."""

    method: str
    path: str
    query: bytes
    headers: Headers
    body: bytes
    source: MutableMapping[str, Any]
    """The ASGI scope or WSGI environ, with what outer middleware has put there (`scope["user"]`)."""
    mount: str = ""
    """The part of the path at which the application is mounted, "" for none."""

    def header(self, name: str) -> str | None:
        """Return the first header of this name, or None."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers if key == wanted), None)


Principal = Callable[[Request], Named] | Callable[[Request], Awaitable[Named]]
"""A function that names the caller whom a key belongs to (a tenant, an account), whose results only they see.

Name it wholly: where each tenant has users 1, 2, 3 of its own, the tenant as well. A digest of it is kept. Where it
returns None or "", a request with a key is answered 400, `principal-required`; see `everyone`."""
FingerprintOf = Callable[[Request], Any]
"""Returns what makes two requests the same: a value to digest, or what `fastdedup.fingerprint()` returned."""


def name_of_caller(value: object, what: str) -> Named:
    """Return a name that a function of the application has found, as text.

    Args:
        value: text, a number or a UUID; None and `EVERYONE` stay as they are.
        what: what it is the name of, for the error: a principal or a subject.

    Raises:
        ConfigError: it is of another type.
    """
    if value is None or value is EVERYONE or isinstance(value, str):
        return value
    if isinstance(value, int | UUID) and not isinstance(value, bool):
        return str(value)
    raise ConfigError(f"a {what} must be text, a number, a UUID or None, got {type(value).__name__}")


def everyone(request: Request) -> Literal[Shared.EVERYONE]:
    """Let all callers share their keys: right where there is only one caller, or keys cannot be guessed."""
    return EVERYONE


def by_header(name: str) -> Callable[[Request], str | None]:
    """Tell callers apart by a header such as X-Api-Key; its digest is kept, as it may be a secret.

    Take a header that a retry has as well: after an access token was refreshed, the retry would be another caller's,
    and run again. A request with a key but without this header, or with two of it, is answered 400,
    `principal-required`: of two, the application might take the other one.
    """
    if not isinstance(name, str) or not name.isascii() or not name:
        raise ConfigError(f"by_header() takes the name of a header, got {name!r}")
    if "_" in name:  # servers drop such headers, or confuse them with those with hyphens
        raise ConfigError(f"by_header() takes a header's name as it is sent, with hyphens, got {name!r}")

    wanted = name.lower().encode()

    def principal(request: Request) -> str | None:
        values = [value.decode("latin-1") for each, value in request.headers if each == wanted]
        if len(values) != 1 or not values[0]:
            return None
        return blake2b(values[0].encode(), digest_size=16).hexdigest()

    return principal


def bare_path(path: str) -> str:
    """Return a path as the most lenient framework reads it, so that no path that is served slips past its rule.

    Many serve `/orders/` as `/orders`; Litestar also serves `//orders`; and the `$` of Starlette's patterns matches
    before a line feed at the end.
    """
    if "//" in path or path[-1:] in ("/", "\n"):
        return re.sub("/+", "/", path).rstrip("/\n") or "/"
    return path


def request_fingerprint(request: Request) -> Fingerprint:
    """Digest method, path, query and body.

    `/orders` and `/orders/` are one path, as they are for a rule: one may redirect to the other. A multipart body's
    boundary is left out, as clients draw a new one when they encode a form again.
    """
    body = request.body
    path = bare_path(request.path).encode("utf-8", "surrogateescape")
    parts = (request.method.encode(), path, request.query)
    if body.startswith(b"--"):
        kind = request.header("content-type")
        if kind is not None and kind[:10].lower() == "multipart/":
            body = _without_boundary(kind.encode("latin-1"), body)
    lengths = b"%d %d %d\n" % tuple(map(len, parts))
    return Fingerprint(blake2b(lengths + b"".join(parts) + body, digest_size=16, person=b"http").digest())


def _without_boundary(kind: bytes, body: bytes) -> bytes:
    found = _BOUNDARY.search(kind)
    return body if found is None else body.replace(b"--" + (found[1] or found[2]), b"--")


def json_fingerprint(request: Request) -> Fingerprint:
    """Digest method, path, query and the value of a JSON body: neither the order of names nor white space counts.

    For `fingerprint=`, where clients encode a request anew for each retry. A number counts as it is written: `1` and
    `1.0` differ, and no digit is lost. A body is digested byte for byte where it has no one value: its content type
    is not JSON, it is malformed or too deep, or it has NaN, an infinity or a name twice in one object.
    """
    kind = (request.header("content-type") or "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        return request_fingerprint(request)
    try:
        body = _canonical(request.body)
    except (ValueError, RecursionError):
        return request_fingerprint(request)
    mark = request_fingerprint(replace(request, body=body))
    # Told apart from a request whose body is this text byte for byte.
    return Fingerprint(blake2b(mark, digest_size=16, person=b"json").digest())


def _canonical(body: bytes) -> bytes:
    """Return a JSON body with sorted names and without white space.

    A number is `{"n": "1.0"}`, as it is written, and each name of an object has a dot before it, so that no object
    is taken for a number.

    Raises:
        ValueError: it is no JSON, has NaN or an infinity, or a name comes twice.
        RecursionError: it is too deep.
    """
    value = json.loads(
        body.decode(),  # strictly: bytes with a BOM, or in UTF-16, would be taken as well, which no JSON is
        object_pairs_hook=_object,
        parse_int=str.encode,  # bytes are the smallest that _number() is asked for: there may be a million
        parse_float=str.encode,
        parse_constant=_refuse,
    )
    return json.dumps(value, default=_number, sort_keys=True, separators=(",", ":")).encode()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = {f".{name}": value for name, value in pairs}
    if len(found) < len(pairs):
        raise ValueError("a name comes twice, and readers differ in which one they take")
    return found


def _number(digits: bytes) -> dict[str, str]:
    return {"n": digits.decode()}


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
