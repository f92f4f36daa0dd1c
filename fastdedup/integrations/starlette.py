"""Starlette: `@idempotent` for one endpoint, where the middleware would guard more than that."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Unpack

from ..errors import ConfigError
from ..gateway import Dedup
from ..web.fingerprints import json_fingerprint
from ..web.request import Principal, by_header, by_host, everyone
from ..web.rules import UUID, KeySettings
from .endpoint import EndpointGate, GuardedEndpoint
from .guarded import claim_of
from .lifespan import Receive, Scope, Send

try:
    from starlette.requests import Request
    from starlette.routing import request_response
except ImportError as error:
    raise ImportError("fastdedup.integrations.starlette needs Starlette: pip install starlette") from error

__all__ = ["UUID", "by_header", "by_host", "claim_of", "everyone", "idempotent", "json_fingerprint"]

Endpoint = Callable[..., Any]
DecoratedFunctions = Callable[..., Coroutine[Any, Any, Any]]


def idempotent(
    dedup: Dedup, *, principal: Principal, docs: str | None = None, **settings: Unpack[KeySettings]
) -> Callable[[Endpoint], DecoratedFunctions]:
    """Decorate an endpoint: a POST or PATCH request with an Idempotency-Key takes effect once.

        @idempotent(dedup, principal=by_header("x-api-key"), required=True)
        async def order(request): ...

    Its response is stored, and replayed to duplicates, as in `IdempotencyMiddleware`. In an HTTPEndpoint decorate the
    method. Open `dedup` in the application's lifespan; otherwise it opens at its first use, and nobody closes it.
    Where Starlette does not put the route into the scope (0.40), each path has keys of its own, as with
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
        if not callable(endpoint) or isinstance(endpoint, type):
            raise ConfigError(
                f"idempotent() decorates an endpoint that is a function, got {endpoint!r}: in an HTTPEndpoint "
                "decorate the method"
            )
        app = gate.guarded(request_response(endpoint))

        @functools.wraps(endpoint)
        async def guarded(*args: Any, **unknown: Any) -> _Exchanged:
            if unknown or not args or not isinstance(args[-1], Request):
                raise ConfigError(
                    f"{endpoint.__name__}() was not called with a Starlette request alone: in FastAPI use "
                    "fastdedup.integrations.fastapi.Claimed"
                )
            method = args[:-1]  # an HTTPEndpoint is made anew for each request
            own = gate.guarded(request_response(functools.partial(endpoint, *method))) if method else app
            return _Exchanged(own, endpoint)

        return guarded

    return decorate


class _Exchanged:
    """Stands for the endpoint's response, which Starlette calls as an application: it runs the endpoint."""

    def __init__(self, app: GuardedEndpoint, endpoint: Endpoint) -> None:
        self._app = app
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = getattr(scope.get("route"), "path", None)
        scope = {
            **scope,
            "endpoint": self._endpoint,
        }  # it may run in a thread; the decorator's own function does not
        await self._app.serve(route, scope, receive, send)
