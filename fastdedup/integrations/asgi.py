"""`IdempotencyMiddleware` for any ASGI application. Main path: `__call__` → `AsgiGate.guarded`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from ..gateway import Dedup
from ..web.fingerprints import json_fingerprint
from ..web.policy import PublishedPolicy, docs_at
from ..web.request import by_header, by_host, everyone
from ..web.route_claims import RouteClaims
from ..web.rules import UUID, Route, RouteSettings, RouteTable, make_rules
from .http.exchange import send_response
from .http.guarded import AsgiGate, claim_of, request_of
from .http.late_exits import warn_of_late_exits
from .http.lifespan import ASGIApp, Receive, Scope, Send

__all__ = [
    "UUID",
    "IdempotencyMiddleware",
    "Route",
    "by_header",
    "by_host",
    "claim_of",
    "everyone",
    "json_fingerprint",
]


class IdempotencyMiddleware(AsgiGate):
    """Makes requests with an Idempotency-Key happen once, and replays the first response to the others.

        app.add_middleware(IdempotencyMiddleware, dedup=dedup, principal=account)
        app.add_middleware(AuthenticationMiddleware, backend=ApiKeys())    # added last, so it is outside

    Put it inside of the middleware that authenticates or compresses, and outside of the routing. If it stands outside
    of what authenticates, a caller whose key was revoked still gets stored responses. It opens `dedup` and
    closes it again, unless it was open before. Records live in the namespace `<dedup's>:http`.

    Args:
        app: the application.
        dedup: a `Dedup`.
        routes: paths and `Route`s; every path by default.
        docs: the address of the policy: a path such as `/idempotency`, which is then served here, or a URL of your
            own. Every error links to it.
        settings: the settings of all routes, see `Route` and `fastdedup.web.rules.Rule`; `principal` is required.

    Raises:
        ConfigError: a setting cannot be used.
    """

    def __init__(
        self,
        app: ASGIApp,
        dedup: Dedup,
        *,
        routes: Sequence[Route | str] = ("/*",),
        docs: str | None = None,
        **settings: Unpack[RouteSettings],
    ) -> None:
        super().__init__(dedup)
        self.app = app
        rules = make_rules(routes, dict(settings))
        self._table = RouteTable(rules, lambda rule: RouteClaims(dedup, rule))
        self._policy = PublishedPolicy(rules, dedup.settings, docs)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                warn_of_late_exits(scope.get("app", self.app), self._guards_route)
                return await self.lifespan.run(self.app, scope, receive, send)
            return await self.app(scope, receive, send)
        path = route_path(scope)
        if path == self._policy.path and scope["method"] in ("GET", "HEAD"):
            accept = request_of(scope, b"").header("accept")
            return await send_response(send, self._policy.page(accept))
        claims = self._table.find(scope["method"], path)
        if claims is None:
            return await self.app(scope, receive, send)
        docs = docs_at(self._policy.docs, scope.get("root_path", ""))
        return await self.guarded(self.app, claims, docs, scope, receive, send)

    def _guards_route(self, route: Any) -> bool:
        return any(self._table.find(method, route.path) is not None for method in route.methods or ())


def route_path(scope: Scope) -> str:
    """Return the path below the application's mount."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if not root:
        return path or "/"
    below = path.removeprefix(root.rstrip("/"))
    return below if below.startswith("/") else path if below else "/"
