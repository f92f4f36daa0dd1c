"""Starlette: `@idempotent` for one endpoint, if the middleware would guard too much."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Unpack

from ..errors import ConfigError
from ..extras import needs
from ..gateway import Dedup
from ..sql.any_inbox import AnyInbox
from ..web.fingerprints import json_fingerprint
from ..web.request import Principal, by_header, by_host, everyone
from ..web.response import Response as WebResponse
from ..web.rules import UUID, KeySettings
from .http.committing import Committed, CommittedWork, RouteCommits, check_kinds
from .http.endpoint import EndpointGate
from .http.exchange import AsgiExchange, send_response, supported
from .http.guarded import claim_of, identify, key_fields
from .http.lifespan import ASGIApp, Message, Receive, Scope, Send
from .http.response_stage import begin_committed, handle_in_thread
from .http.threads import is_async

with needs(__name__, "Starlette", "starlette"):
    from starlette.requests import ClientDisconnect, Request
    from starlette.routing import request_response

__all__ = [
    "UUID",
    "Committed",
    "by_header",
    "by_host",
    "claim_of",
    "commits",
    "everyone",
    "idempotent",
    "json_fingerprint",
]

Endpoint = Callable[..., Any]
DecoratedFunctions = Callable[..., Coroutine[Any, Any, Any]]
Method = functools.partial[Any]
"""An endpoint that takes its request: a function, or a method of an HTTPEndpoint, which is made for each request."""


def idempotent(
    dedup: Dedup, *, principal: Principal, docs: str | None = None, **settings: Unpack[KeySettings]
) -> Callable[[Endpoint], DecoratedFunctions]:
    """Decorate an endpoint: a POST or PATCH request with an Idempotency-Key takes effect once.

        @idempotent(dedup, principal=by_header("x-api-key"), required=True)
        async def order(request): ...

    Its response is stored, and replayed to duplicates, just like in `IdempotencyMiddleware`. In an HTTPEndpoint
    decorate the method. Open `dedup` in the application's lifespan; otherwise it opens at its first use, and is never
    closed. If Starlette does not put the route into the scope (0.40), each path has keys of its own, just like with
    `key_scope="path"`.

    Args:
        dedup: a `Dedup`.
        principal: names the caller whom a key belongs to. What middleware has found is in its `request.source`, which
            is the scope: `request.source["user"]`, `request.source["session"]`.
        docs: the address of the documentation, which every error links to.
        settings: see `fastdedup.web.rules.Rule`.

    Raises:
        ConfigError: a setting cannot be used.
    """
    gate = EndpointGate(dedup, docs, {"principal": principal, **settings})

    def decorate(endpoint: Endpoint) -> DecoratedFunctions:
        _check_endpoint(endpoint, "idempotent")
        app = request_response(endpoint)

        async def answer(method: Method, scope: Scope, receive: Receive, send: Send) -> None:
            own = request_response(method) if method.args else app
            # The endpoint may run in a thread; the decorator's own function does not.
            await gate.serve(own, _route(scope), {**scope, "endpoint": endpoint}, receive, send)

        return _decorated(endpoint, answer, "Claimed")

    return decorate


def commits(
    dedup: Dedup,
    inbox: AnyInbox[Any],
    *,
    principal: Principal,
    begin: Any = None,
    docs: str | None = None,
    **settings: Unpack[KeySettings],
) -> Callable[[Endpoint], DecoratedFunctions]:
    """Decorate an endpoint: its work, an inbox's row and the response commit in one transaction.

        @commits(dedup, inbox, begin=Session.begin, principal=by_header("x-api-key"), required=True)
        async def pay(request, committed):
            committed.session.add(Payment(...))
            return JSONResponse(...)

    The response is sent after the COMMIT, and a retry gets it from the row. The endpoint gets a `Committed` behind
    its request. For the rules see `fastdedup.integrations.fastapi.Commits` and `docs/committing-endpoint.md`.

    Args:
        dedup: the gate before the inbox.
        inbox: the inbox, of `fastdedup.sql`.
        principal: see `idempotent`.
        begin: begins the transaction, like `Session.begin`; by default the inbox's. Another task may end it.
        docs: the address of the documentation, which every error links to.
        settings: see `fastdedup.web.rules.Rule`; `unstored` has no effect.

    Raises:
        ConfigError: a setting cannot be used, or there is no `begin`.
    """
    gate = EndpointGate(dedup, docs, {"principal": principal, **settings})
    inbox.beginning(begin)

    @functools.cache  # an application has a fixed number of routes
    def route_at(path: str | None) -> RouteCommits:
        claims = gate.claims_at(path)
        return RouteCommits(claims, claims.dedup, inbox, begin)

    def decorate(endpoint: Endpoint) -> DecoratedFunctions:
        _check_endpoint(endpoint, "commits")
        check_kinds(inbox, endpoint, awaited=is_async(endpoint))

        async def answer(method: Method, scope: Scope, receive: Receive, send: Send) -> None:
            if claim_of(scope) is not None:
                raise ConfigError(
                    "IdempotencyMiddleware has claimed this request already: leave its route to commits()"
                )
            route = route_at(_route(scope))
            exchange = AsgiExchange(receive, send, route.claims.rule.max_request)
            scope = {**supported(scope), "endpoint": endpoint}  # which may run in a thread, like above
            await exchange.run(functools.partial(_work, gate, route, exchange, method), scope)

        return _decorated(endpoint, answer, "Commits")

    return decorate


def _check_endpoint(endpoint: Any, decorator: str) -> None:
    if not callable(endpoint) or isinstance(endpoint, type):
        raise ConfigError(
            f"{decorator}() decorates an endpoint that is a function, got {endpoint!r}: in an HTTPEndpoint "
            "decorate the method"
        )


def _decorated(
    endpoint: Endpoint, answer: Callable[..., Coroutine[Any, Any, None]], otherwise: str
) -> DecoratedFunctions:
    """Return an endpoint whose response is `answer`, which is called with a `Method` and as an ASGI application.

    Unless Starlette calls the endpoint, it raises ConfigError, which names FastAPI's dependency, `otherwise`.
    """

    @functools.wraps(endpoint)
    async def decorated(*args: Any, **unknown: Any) -> ASGIApp:
        if unknown or not args or not isinstance(args[-1], Request):
            raise ConfigError(
                f"{endpoint.__name__}() was not called with a Starlette request alone: in FastAPI use "
                f"fastdedup.integrations.fastapi.{otherwise}"
            )
        # Starlette calls it: for Starlette a response is an application.
        request, method = args[-1], functools.partial(endpoint, *args[:-1])

        async def answered(scope: Scope, receive: Receive, send: Send) -> None:
            await answer(method, scope, _after_readers(request, receive), send)

        return answered

    return decorated


def _after_readers(request: Request, receive: Receive) -> Receive:
    """Return a `receive` with a request's body, which a decorator above may have read: the request keeps it."""
    pieces = request.stream()

    async def received() -> Message:
        try:
            piece = await anext(pieces, None)
        except ClientDisconnect:
            return {"type": "http.disconnect"}
        except RuntimeError as error:
            if str(error) != "Stream consumed":  # it is the server's own
                raise
            if not key_fields(request.scope):  # there is nothing to compare
                return await receive()
            raise ConfigError(
                "a decorator above fastdedup's has read the request's body as a stream or a form, so it cannot be "
                "compared: let it await request.body() first, or stand below"
            ) from error
        if piece is None:
            return await receive()
        if not piece:  # the end; a body that was read and is empty has another one behind it
            await pieces.aclose()
        return {"type": "http.request", "body": piece, "more_body": bool(piece)}

    return received


def _route(scope: Scope) -> str | None:
    """Return the endpoint's declared path, or None if Starlette does not tell it."""
    return getattr(scope.get("route"), "path", None)


async def _work(
    gate: EndpointGate,
    route: RouteCommits,
    exchange: AsgiExchange,
    endpoint: Method,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Run an endpoint in its transaction: the application within the exchange."""
    named = functools.partial(identify, route.claims.rule, gate.lifespan, scope, exchange)
    response: Any = await begin_committed(route, scope, exchange, gate.docs_at(scope), named)
    if isinstance(response, Committed):
        work: CommittedWork = exchange.stage.work
        run = endpoint if is_async(endpoint.func) else functools.partial(handle_in_thread, endpoint)
        response = await work.run(functools.partial(run, Request(scope, receive, send), response))
    if isinstance(response, WebResponse):
        await send_response(send, response)
    else:
        await response(scope, receive, send)
