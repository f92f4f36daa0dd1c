"""`IdempotencyMiddleware` for any ASGI application. Main path: `__call__` → `_guarded` → `AsgiExchange.run`."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import isawaitable
from typing import Unpack

from ..claim import Claim
from ..errors import ConfigError
from ..gateway import Dedup
from ..web.answers import REFUSALS, answer, refusal
from ..web.header import parse
from ..web.policy import PublishedPolicy, docs_at
from ..web.request import Request, by_header, everyone, json_fingerprint
from ..web.rules import UUID, Route, RouteSettings, RouteTable, make_rules
from .exchange import CLAIM, AsgiExchange, supported
from .guard import Guard
from .lifespan import ASGIApp, Lifespan, Receive, Scope, Send
from .unreached import watch

__all__ = [
    "UUID",
    "IdempotencyMiddleware",
    "Route",
    "by_header",
    "claim_of",
    "everyone",
    "json_fingerprint",
]


class GuardedApp:
    """An ASGI application whose requests run under their claim. It opens the `Dedup` where nobody has.

    Raises:
        ConfigError: `dedup` is no `fastdedup.Dedup`.
    """

    def __init__(self, app: ASGIApp, dedup: Dedup) -> None:
        if not isinstance(dedup, Dedup):
            raise ConfigError(f"ASGI takes a fastdedup.Dedup, got {dedup!r}")
        self.app = app
        self._lifespan = Lifespan(dedup)
        # Mutable: was the application searched for FastAPI, whose errors are watched.
        self._watched = False

    async def _guarded(
        self, guard: Guard, docs: str | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        exchange = AsgiExchange(receive, send, guard.rule.max_request)
        claim: Claim | None = None
        try:
            key = parse([value for name, value in scope["headers"] if name == b"idempotency-key"])
            guard.rule.check_key(key)
            if key is not None:
                body = await exchange.body()
                if body is None:
                    return None  # the client left before it sent the whole request: nothing has happened
                if not self._lifespan.is_ready:
                    await self._lifespan.ready()
                request = request_of(scope, body)
                principal = guard.rule.principal(request)
                if isawaitable(principal):
                    principal = await principal
                claim = await guard.claim(request, principal, key)
        except REFUSALS as error:
            return await exchange.answer(refusal(error, guard.rule, docs))
        if claim is None:  # outside of the `try`: the application's exceptions are its own
            return await self.app(scope, receive, send)
        if not claim.acquired:
            return await exchange.answer(answer(claim, guard.rule, docs))
        scope = supported(scope)
        exchange.hold(scope, claim, guard.rule, docs)
        if not self._watched:
            self._watched = True
            watch(scope.get("app", self.app))
        return await exchange.run(self.app, scope)


class IdempotencyMiddleware(GuardedApp):
    """Makes requests with an Idempotency-Key happen once, and replays the first response to the others.

        app.add_middleware(IdempotencyMiddleware, dedup=dedup, principal=by_header("x-api-key"))

    Put it inside of the middleware that authenticates or compresses, and outside of the routing. It opens `dedup` and
    closes it again, unless it was open before. Records live in the namespace `<dedup's>:http`.

    Args:
        app: the application.
        dedup: a `Dedup`.
        routes: paths and `Route`s; every path by default.
        docs: where the policy is published: a path such as `/idempotency`, which is then served here, or a URL
            of your own. Every error links to it.
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
        super().__init__(app, dedup)
        rules = make_rules(routes, dict(settings))
        self._table = RouteTable(rules, lambda rule: Guard(dedup, rule))
        self._policy = PublishedPolicy(rules, dedup.settings, docs)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                return await self._lifespan.run(self.app, scope, receive, send)
            return await self.app(scope, receive, send)
        path = route_path(scope)
        if path == self._policy.path and scope["method"] in ("GET", "HEAD"):
            accept = request_of(scope, b"").header("accept")
            return await AsgiExchange(receive, send, 0).answer(self._policy.page(accept))
        guard = self._table.find(scope["method"], path)
        if guard is None:
            return await self.app(scope, receive, send)
        docs = docs_at(self._policy.docs, scope.get("root_path", ""))
        return await self._guarded(guard, docs, scope, receive, send)


def route_path(scope: Scope) -> str:
    """Return the path below the application's mount."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if not root:
        return path or "/"
    below = path.removeprefix(root.rstrip("/"))
    return below if below.startswith("/") else path if below else "/"


def request_of(scope: Scope, body: bytes) -> Request:
    """Return the request of an ASGI scope."""
    mount = scope.get("root_path", "")
    return Request(
        scope["method"].upper(), scope["path"], scope["query_string"], scope["headers"], body, scope, mount
    )


def claim_of(scope: Scope) -> Claim | None:
    """Return the claim under which a request runs, by its scope (`request.scope`), with its `fence` and `lost`.

    None where the request came without a key.
    """
    return scope.get(CLAIM)
