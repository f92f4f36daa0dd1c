"""The request that principal and fingerprint functions get, and the functions that name its caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, Literal
from uuid import UUID

from ..checks import named, whole_text
from ..errors import ConfigError
from .response import Headers


class RequestTooLarge(ValueError):
    """The request's body exceeds `max_request`."""


class BadBody(ValueError):
    """The request's body cannot be read; the text says why. An ASGI server answers such a request itself."""


class PrincipalMissing(ValueError):
    """A request has a key, but the principal function names no caller whom the key belongs to."""


class Shared(Enum):
    """The principal of callers who share their keys."""

    EVERYONE = "everyone"


EVERYONE: Literal[Shared.EVERYONE] = Shared.EVERYONE
"""The value that `everyone` returns. A missing name is another thing: such a request is refused."""
Named = str | int | UUID | Literal[Shared.EVERYONE] | None
"""The value of a principal function: text, a number or a UUID, `EVERYONE`, or None if it finds no caller."""


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
    host: str = ""
    """The host that the client named, by `normal_host`; "" if it named none."""

    def header(self, name: str) -> str | None:
        """Return the first header of this name, or None."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers if key == wanted), None)


Principal = Callable[[Request], Named] | Callable[[Request], Awaitable[Named]]
"""A function that names the caller whom a key belongs to (a tenant, an account), whose results only they see.

Name it wholly: if each tenant has users 1, 2, 3 of its own, name the tenant as well. A digest of the name is kept. If
the function returns None or "", a request with a key is answered 400, `principal-required`; see `everyone`."""
Tenant = Callable[[Request], str | int | UUID | None]
"""A plain function that names the tenant whom a request is for; "" stands for all of them. See `by_host`.

If it returns None, a request with a key is answered 400, `principal-required`."""
FingerprintOf = Callable[[Request], Any]
"""Returns what makes two requests the same: a value to digest, or what `fastdedup.fingerprint()` returned."""


def name_of_caller(value: object, what: str) -> str | Literal[Shared.EVERYONE] | None:
    """Return the text of a name that a function of the application has found.

    Args:
        value: text, a number or a UUID; None and `EVERYONE` stay unchanged.
        what: the kind of name, for the error: a principal, a tenant or a subject.

    Raises:
        ConfigError: it is of another type.
        InvalidKeyError: it is a number with too many digits.
    """
    if value is None or value is EVERYONE or isinstance(value, str):
        return value
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return whole_text(value, f"a {what}")
    raise ConfigError(f"a {what} must be text, a number, a UUID or None, got {type(value).__name__}")


def everyone(request: Request) -> Literal[Shared.EVERYONE]:
    """Let all callers share their keys: right if there is only one caller, or if keys cannot be guessed."""
    return EVERYONE


def by_host(request: Request) -> str:
    """Give each host keys of its own: a `tenant=` for an application that has a tenant for each host."""
    return request.host


def normal_host(host: str, scheme: str) -> str:
    """Return the value of a Host header in one spelling: lower case, no default port, no dot at the end."""
    name = host.strip().lower().removesuffix(":443" if scheme == "https" else ":80")
    return name.removesuffix(".").replace(".:", ":")


def host_of(headers: Headers, scheme: str) -> str:
    """Return the host that a request's headers name, by `normal_host`; two Host headers are one with a comma."""
    named = b",".join([value for name, value in headers if name == b"host"])
    return (_known_host if len(named) < _LONG_HOST else _host)(named, scheme)


def _host(named: bytes, scheme: str) -> str:
    return normal_host(named.decode("latin-1"), scheme)


_known_host = lru_cache(maxsize=256)(_host)
_LONG_HOST: Final = 256
"""The number of bytes from which a host is not cached: a name has fewer, and clients may send any text."""


def by_header(name: str) -> Callable[[Request], str | None]:
    """Tell callers apart by a header such as X-Api-Key; its digest is kept, because it may be a secret.

    Take a header that a retry has as well: after an access token was refreshed, the retry would be another caller's,
    and run again. A request with a key but without this header, or with two of it, is answered 400,
    `principal-required`: of two, the application might take the other one. A WSGI server joins two by a comma, so
    that they are one other name, for the application as well.
    """
    if not isinstance(name, str) or not name.isascii() or not name:
        raise ConfigError(f"by_header() takes the name of a header, got {name!r}")
    if "_" in name:  # servers drop such headers, or confuse them with those with hyphens
        raise ConfigError(f"by_header() takes a header's name with hyphens, not underscores, got {name!r}")

    wanted = name.lower().encode()

    def principal(request: Request) -> str | None:
        values = [value.decode("latin-1") for each, value in request.headers if each == wanted]
        return digest_of(values[0].encode()) if len(values) == 1 and values[0] else None

    return principal


def principal_of_header(value: str) -> str:
    """Return the principal that `by_header` makes of a header's value, such as `Bearer 4711`: its digest.

    To find a caller's records: `get_request(dedup, …, principal=principal_of_header("Bearer 4711"))`.

    Raises:
        ConfigError: the value is no text, or empty: `by_header` refuses a request with an empty one.
    """
    if not isinstance(value, str) or not value:
        got = "an empty one" if value == "" else named(value)
        raise ConfigError(f"a header's value must be text that is not empty, got {got}")
    return digest_of(as_received(value).encode())


def as_received(value: str) -> str:
    """Return a header's value as a server sees it, which takes each byte for a character."""
    return value.encode("utf-8", "surrogatepass").decode("latin-1")


def digest_of(data: bytes) -> str:
    """Return a digest of a name: it may be a secret, or long, and keys are in Redis and in logs."""
    return blake2b(data, digest_size=16).hexdigest()
