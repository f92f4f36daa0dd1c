"""An ASGI application whose requests run under their claim. Main path: `GuardedApp._guarded` → `AsgiExchange.run`."""

from __future__ import annotations

from inspect import isawaitable
from typing import Any, cast

from ..checks import not_a_gate
from ..claim import Claim
from ..compiled import mypyc_attr
from ..gateway import Dedup
from ..web.answers import REFUSALS, answer, refusal
from ..web.header import parse
from ..web.request import EVERYONE, Request, host_of
from ..web.response import Response
from .exchange import CLAIM, AsgiExchange, supported
from .guard import Guard
from .lifespan import ASGIApp, Lifespan, Receive, Scope, Send
from .unreached import watch


@mypyc_attr(allow_interpreted_subclasses=True)
class GuardedApp:
    """An ASGI application whose requests run under their claim. It opens the `Dedup` where nobody has.

    Raises:
        ConfigError: `dedup` is no `fastdedup.Dedup`.
    """

    def __init__(self, app: ASGIApp, dedup: Any) -> None:
        if not isinstance(dedup, Dedup):
            call = "IdempotencyMiddleware(app, dedup) or idempotent(dedup)"
            raise not_a_gate(dedup, f"dedup in {call}", "fastdedup.Dedup")
        self.app = app
        self._lifespan = Lifespan(dedup)
        # Mutable: was the application searched for FastAPI, whose errors are watched.
        self._watched = False

    async def _guarded(
        self, guard: Guard, docs: str | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if not self._watched:
            self._watched = True
            watch(scope.get("app", self.app))
        if CLAIM in scope:
            # An outer guard has claimed the request, and one response cannot settle two claims.
            return await self.app(scope, receive, send)
        exchange = AsgiExchange(receive, send, guard.rule.max_request)
        claim: Claim | None = None
        refused: Response | None = None
        try:
            key = parse(values_of(scope["headers"], b"idempotency-key"))
            guard.rule.check_key(key)
            if key is not None:
                body = await exchange.body()
                if body is None:
                    return None  # the client left before it sent the whole request: nothing has happened
                if not self._lifespan.is_ready:
                    await self._lifespan.ready()
                request = request_of(scope, body)
                principal: Any = guard.rule.principal(request)
                if principal is not EVERYONE and type(principal) is not str and isawaitable(principal):
                    principal = await principal
                claim = await guard.claim(*guard.rule.identify(request, principal, key), owns_renewal=True)
        except REFUSALS as error:
            refused = refusal(error, guard.rule, docs)
        if refused is not None:
            return await exchange.answer(refused)
        # From here on nothing may come between the claim and `AsgiExchange.run`, which ends its renewal in any case.
        if claim is None:  # outside of the `try`: the application's exceptions are its own
            return await self.app(scope, receive, send)
        if not claim.acquired:
            return await exchange.answer(answer(claim, guard.rule, docs))
        scope = supported(scope)
        exchange.hold(scope, claim, guard.rule, docs)
        return await exchange.run(self.app, scope)


def values_of(headers: Any, name: bytes) -> list[bytes]:
    """Return the values of the headers of this name; `headers` are pairs of any kind."""
    return [value for each, value in headers if each == name]


def request_of(scope: Scope, body: bytes) -> Request:
    """Return the request of an ASGI scope."""
    path = scope["path"]
    headers = scope["headers"]
    mount = scope.get("root_path", "")
    if mount and not f"{path}/".startswith(mount.rstrip("/") + "/"):
        path = mount.rstrip("/") + path  # a proxy has removed the mount, and a retry may come past that proxy
    host = host_of(headers, scope.get("scheme", "http"))
    return Request(scope["method"].upper(), path, scope["query_string"], headers, body, scope, mount, host)


def claim_of(scope: Scope) -> Claim | None:
    """Return the claim under which a request runs, by its scope (`request.scope`), with its `fence` and `lost`.

    None where the request came without a key.
    """
    return cast("Claim | None", scope.get(CLAIM))
