"""Requests of ASGI applications run under their claim. Main path: `AsgiGate.guarded` → `AsgiExchange.run`."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import Any, Final, cast

from ...checks import check_dedup
from ...claim import Claim
from ...compiled import mypyc_attr
from ...errors import ConfigError
from ...gateway import Dedup
from ...keys import Fingerprint
from ...web.admit import admit
from ...web.request import EVERYONE, Request, host_of
from ...web.response import Headers, Response
from ...web.route_claims import RouteClaims
from ...web.rules import Rule
from ..unreached import watch
from .exchange import CLAIM, CLIENT_GONE, AsgiExchange, ClientLeft, supported
from .lifespan import ASGIApp, Lifespan, Message, Receive, Scope, Send

_LITESTAR: Final = "litestar_app"
"""The key of a scope under which Litestar has its application."""


@mypyc_attr(allow_interpreted_subclasses=True)
class AsgiGate:
    """Runs the requests of ASGI applications under their claim. It opens the `Dedup` if that is not open yet.

    Raises:
        ConfigError: `dedup` is not a `fastdedup.Dedup`.
    """

    def __init__(self, dedup: Any) -> None:
        check_dedup(dedup, Dedup, "dedup in IdempotencyMiddleware(app, dedup) or idempotent(dedup)")
        self.lifespan = Lifespan(dedup)
        # Mutable: was the first application searched for FastAPI, whose errors are watched.
        self._watched = False

    async def guarded(
        self, app: ASGIApp, claims: RouteClaims, docs: str | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve a request of a route that takes keys."""
        if not self._watched:
            self._watched = True
            watch(scope.get("app", app))
        if CLAIM in scope:
            # An outer guard has claimed the request, and one response cannot settle two claims.
            return await app(scope, receive, send)
        if _LITESTAR in scope and key_fields(scope):
            receive = _after_readers(scope, receive)
        exchange = AsgiExchange(receive, send, claims.rule.max_request)
        claim = partial(self._claim, claims, scope, exchange)
        try:
            got = await admit(key_fields(scope), claim, claims.rule, docs)
        except ClientLeft:
            got = CLIENT_GONE
        # From here on nothing may come between the claim and `AsgiExchange.run`, which ends its renewal in any case.
        if got is None:
            return await app(scope, receive, send)
        if isinstance(got, Response):
            return await exchange.answer(got)
        scope = supported(scope)
        exchange.hold(scope, got, claims.rule, docs)
        return await exchange.run(app, scope)

    async def _claim(self, claims: RouteClaims, scope: Scope, exchange: AsgiExchange, key: str) -> Claim:
        """Claim a request's key. Its renewal is ended by `AsgiExchange.run`.

        Raises:
            ClientLeft: its body did not come.
        """
        name, mark = await identify(claims.rule, self.lifespan, scope, exchange, key)
        return await claims.claim(name, mark)


async def identify(
    rule: Rule, lifespan: Lifespan, scope: Scope, exchange: AsgiExchange, key: str
) -> tuple[str, Fingerprint]:
    """Open the `Dedup`; return the key of a request's record, and the fingerprint. See `Rule.identify`.

    Raises:
        ClientLeft: the request's body did not come.
    """
    headers = list(scope["headers"])
    body = await exchange.body()
    await lifespan.ready()
    request = request_of(scope, body, headers)
    principal: Any = rule.principal(request)
    if principal is not EVERYONE and type(principal) is not str and isawaitable(principal):
        principal = await principal
    return rule.identify(request, principal, key)


def key_fields(scope: Scope) -> list[bytes]:
    """Return the value of each Idempotency-Key line of a request."""
    return [value for name, value in scope["headers"] if name == b"idempotency-key"]


def request_of(scope: Scope, body: bytes, headers: Headers | None = None) -> Request:
    """Return the request of an ASGI scope.

    Args:
        scope: the request's.
        body: its body.
        headers: those from before the body came; None: the scope's. uvicorn adds the trailers of a body in chunks to
            the scope's list, and a trailer must not name a caller whom the authenticating middleware never saw.
    """
    path = scope["path"]
    if headers is None:
        headers = scope["headers"]
    mount = scope.get("root_path", "")
    if mount and not f"{path}/".startswith(mount.rstrip("/") + "/"):
        path = mount.rstrip("/") + path  # a proxy has removed the mount, and a retry may come past that proxy
    host = host_of(headers, scope.get("scheme", "http"))
    return Request(scope["method"].upper(), path, scope["query_string"], headers, body, scope, mount, host)


def _after_readers(scope: Scope, receive: Receive) -> Receive:
    """Return a `receive` that begins with the body that something in front has read, such as LoggingMiddleware.

    Litestar keeps it for the handler, and the server does not send it again.
    """
    asked = False

    async def received() -> Message:
        nonlocal asked
        first, asked = not asked, True
        body = await _read_before(scope[_LITESTAR].request_class(scope, _unread)) if first else None
        return await receive() if body is None else {"type": "http.request", "body": body, "more_body": False}

    return received


async def _unread() -> Message:
    raise LookupError("the body was not read before")


async def _read_before(request: Any) -> bytes | None:
    """Return what a request of Litestar keeps of its body; None if it was not read: it cannot receive any.

    Raises:
        ConfigError: the body was read as a form with files, of which only the parts are kept.
    """
    with suppress(Exception):  # also if Litestar refuses its length: it does so again for the handler
        return cast("bytes", await request.body())
    parsed = False
    with suppress(Exception):
        parsed = request.content_type[0] == "multipart/form-data" and await request.form() is not None
    if parsed:
        raise ConfigError(
            "a middleware outside of fastdedup's has read the request's body as a form, so it cannot be compared: "
            'let it await request.body() first, or leave "body" out of the request_log_fields of LoggingMiddleware'
        )
    return None


def claim_of(scope: Scope) -> Claim | None:
    """Return the claim under which a request runs, by its scope (`request.scope`), with its `fence` and `lost`.

    None if the request came without a key.
    """
    return cast("Claim | None", scope.get(CLAIM))
