"""Litestar: `@idempotent` for one route handler, if the middleware would guard too much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, Unpack

from ..errors import ConfigError
from ..extras import needs
from ..gateway import Dedup
from ..web.fingerprints import json_fingerprint
from ..web.request import Principal, by_header, by_host, everyone
from ..web.rules import UUID, KeySettings
from .http.endpoint import EndpointGate
from .http.guarded import claim_of
from .http.lifespan import ASGIApp, Receive, Scope, Send

with needs(__name__, "Litestar", "litestar"):
    from litestar.handlers import HTTPRouteHandler

__all__ = ["UUID", "by_header", "by_host", "claim_of", "everyone", "idempotent", "json_fingerprint"]

Handler = TypeVar("Handler", bound=HTTPRouteHandler)


def idempotent(
    dedup: Dedup, *, principal: Principal, docs: str | None = None, **settings: Unpack[KeySettings]
) -> Callable[[Handler], Handler]:
    """Decorate a route handler: a POST or PATCH request with an Idempotency-Key takes effect once.

        @idempotent(dedup, principal=by_header("x-api-key"), required=True)
        @post("/orders")
        async def order(data: Order) -> Order: ...

    Write it above Litestar's decorator: it adds a middleware to the handler, the innermost. A response is stored, and
    replayed to duplicates, just like in `IdempotencyMiddleware`. Guards run in the handler, so a replay comes before
    them. Open `dedup` in the application's lifespan; otherwise it opens at its first use, and is never closed.

    Args:
        dedup: a `Dedup`.
        principal: names the caller whom a key belongs to. What middleware has found is in its `request.source`, which
            is the scope: `request.source["user"]`.
        docs: the address of the documentation, which every error links to.
        settings: see `fastdedup.web.rules.Rule`.

    Raises:
        ConfigError: a setting cannot be used, or it does not stand above a handler of HTTP.
    """
    gate = EndpointGate(dedup, docs, {"principal": principal, **settings})

    def middleware(app: ASGIApp) -> Any:  # a function, which Litestar's copies of a handler share
        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            await gate.serve(app, scope.get("path_template"), scope, receive, send)

        return serve

    def decorate(handler: Handler) -> Handler:
        if not isinstance(handler, HTTPRouteHandler):
            raise ConfigError(
                f"idempotent() decorates a route handler of Litestar, got {handler!r}: write it above @post(...)"
            )
        handler.middleware = [*(handler.middleware or ()), middleware]
        return handler

    return decorate
