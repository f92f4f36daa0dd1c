"""A response that is stored and replayed: status, headers and body, byte for byte."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from http.client import responses
from typing import Any, Final, cast

import orjson

from ..errors import ForeignRecordError, ResultError

Headers = Sequence[tuple[bytes, bytes]]
"""Headers in the order in which they were sent. Names are in lower case; from WSGI and Django they are unchanged."""

PHRASES: Final = responses
"""The reason phrase of each status."""
REPLAYED = (b"idempotency-replayed", b"true")
DEGRADED = (b"idempotency-degraded", b"true")
UNSTORED = (b"idempotency-stored", b"false")
_FORMAT: Final = 1
_OF_ONE_CONNECTION = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade")
)
"""The headers of a connection, which are no part of a response (RFC 9110, section 7.6.1)."""
_OF_ONE_CALLER = frozenset(
    (
        b"authorization",
        b"www-authenticate",
        b"authentication-info",
        b"proxy-authorization",
        b"proxy-authenticate",
        b"proxy-authentication-info",
    )
)
"""Credentials, and the challenges for them. They hold for one exchange, and a retry may come from another place."""
NEVER = _OF_ONE_CONNECTION | _OF_ONE_CALLER
"""The headers that are never stored, whatever a rule says."""


class Response:
    """A response. If `whole` is False, its body was not kept."""

    __slots__ = ("body", "headers", "reason", "request", "status", "whole")

    def __init__(
        self,
        status: int,
        headers: Headers,
        body: bytes,
        whole: bool = True,
        request: bytes = b"",
        reason: str = "",
    ) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.whole = whole
        self.request = request
        """The fingerprint of its request, for records that do not hold it themselves (a token's)."""
        self.reason = reason
        """The reason phrase of its status line, if the application gave one of its own."""

    def __eq__(self, other: object) -> bool:
        """Compare all that a client gets; requests are not compared."""
        return isinstance(other, Response) and _shown(self) == _shown(other)

    def __repr__(self) -> str:
        return f"Response{_shown(self)!r}"

    def header(self, name: bytes) -> bytes | None:
        """Return the first header of this lower-case name, or None."""
        pairs: Any = self.headers
        for key, value in pairs:
            if key.lower() == name:
                return bytes(value)
        return None

    def with_headers(self, headers: Headers) -> Response:
        """Return the response with these headers in the place of its own."""
        return Response(self.status, headers, self.body, self.whole, self.request, self.reason)

    def marked(self, *marks: tuple[bytes, bytes]) -> Response:
        """Return the response with these headers added."""
        return self.with_headers([*self.headers, *marks])

    def for_request(self, headers: Headers) -> Response:
        """Return the response with the cookies and CORS headers among those that middleware has set for a request."""
        pairs: Any = headers
        live = [(bytes(name), bytes(value)) for name, value in pairs if is_of_request(name)]
        has_cors = any(_is_of_cors(name) for name, _ in live)
        kept = [pair for pair in self.headers if not (has_cors and _is_of_cors(pair[0]))]
        return self.with_headers([*kept, *live])

    def before_middleware(self) -> Response:
        """Return the response without cookies and CORS headers, for middleware that sets its own."""
        return self.with_headers([pair for pair in self.headers if not is_of_request(pair[0])])

    def without_content(self) -> Response:
        """Return the response without headers and body, which were not kept."""
        return Response(self.status, (), b"", False, self.request, self.reason)


def is_of_request(name: bytes) -> bool:
    """True for a header that middleware sets for a request, whatever its response: a cookie, or one of CORS."""
    return name.lower() == b"set-cookie" or _is_of_cors(name)


def _is_of_cors(name: bytes) -> bool:
    return name.lower().startswith(b"access-control-")


def own_reason(status: int, reason: str, unknown: str = "") -> str:
    """Return a reason phrase, or "" if it is the one that its status has anyway, `unknown` for an unknown status."""
    return "" if reason == PHRASES.get(status, unknown) else reason


class HeaderFilter:
    """The headers that are stored: those to keep (None: all), less those to drop, less `NEVER`.

    A header that `Connection` names is of one connection as well (RFC 9110, section 7.6.1), so it is not stored.
    """

    def __init__(self, keep: Collection[str] | None, drop: Collection[str]) -> None:
        self._keep = None if keep is None else frozenset([name.lower().encode() for name in keep])
        self._drop = NEVER.union([name.lower().encode() for name in drop])

    def __call__(self, headers: Headers) -> Headers:
        """Return the headers that are stored; their names keep their spelling."""
        keep, drop = self._keep, self._drop
        pairs: Any = headers  # pairs of any kind: some applications send lists
        kept = [pair for pair in pairs if pair[0].lower() not in drop]
        if len(kept) < len(pairs):
            of_connection = _names_in_connection(pairs)
            kept = [pair for pair in kept if pair[0].lower() not in of_connection]
        return kept if keep is None else [pair for pair in kept if pair[0].lower() in keep]


def _names_in_connection(pairs: Any) -> set[bytes]:
    """Return the names that the header `Connection` lists, in lower case."""
    listed = [bytes(value).lower() for name, value in pairs if name.lower() == b"connection"]
    return {name.strip() for value in listed for name in value.split(b",")}


class ResponseCodec:
    """Encodes a response as a line of JSON, which people and `fastdedup inspect` can read, and the body's bytes.

    Args:
        spelled: True: return the names of headers in their stored spelling. False: in lower case, ASGI's rule.
    """

    stores_errors = True

    def __init__(self, *, spelled: bool = False) -> None:
        self._spelled = spelled

    def dumps(self, value: Any) -> bytes:
        """Encode a Response.

        Raises:
            ResultError: the value is not a Response.
        """
        if not isinstance(value, Response):
            raise ResultError(
                f"the result or error of a web request must be its response, got {type(value).__name__}: return it "
                "from the handler, which settles the claim; or complete the claim without a result"
            )
        pairs: Any = value.headers
        headers = [(_text(name), _text(text)) for name, text in pairs]
        request = value.request.hex() if value.request else ""
        head: list[Any] = [_FORMAT, value.status, value.whole, headers, request]
        if value.reason:
            head.append(value.reason)
        return orjson.dumps(head) + b"\n" + value.body

    def loads(self, data: bytes) -> Response:
        """Return the Response.

        Raises:
            ForeignRecordError: other code, or another version, has stored the record under the same namespace.
        """
        head, _, body = data.partition(b"\n")
        try:
            version, status, whole, headers, request, *reason = orjson.loads(head)
            if version != _FORMAT:
                raise ValueError("another format")
            spelled = headers if self._spelled else [(name.lower(), value) for name, value in headers]
            decoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in spelled]
            return Response(status, decoded, body, whole, bytes.fromhex(request), *reason[:1])
        except (ValueError, TypeError, AttributeError):
            raise ForeignRecordError(
                "a stored response was not written by this version of fastdedup's HTTP integration: give the "
                "integration a namespace of its own"
            ) from None


def _shown(response: Response) -> tuple[int, Headers, bytes, bool, str]:
    """Return what a client gets of a response."""
    return response.status, response.headers, response.body, response.whole, response.reason


def _text(part: Any) -> str:
    """Return a header's name or value as text. Nearly all are bytes, which compiled code decodes without a lookup."""
    if isinstance(part, bytes):
        return part.decode("latin-1")
    return cast(str, part.decode("latin-1"))
