"""The FastAPI application of the web table's servers, bare or behind a gate (internal).

`BENCH_GATE` names one of GATES, `BENCH_URL` the Redis. With `BENCH_DEFAULT_GC` the collector keeps Python's own
thresholds.
"""

import gc
import os
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import BaseModel
from redis.asyncio import Redis

from bench.contest import GC_THRESHOLDS, LEASE_MS
from fastdedup import Claim, Dedup
from fastdedup.integrations.http.lifespan import ASGIApp, Message, Receive, Scope, Send

URL = os.environ.get("BENCH_URL", "memory://")
NAMESPACE = os.environ.get("BENCH_NAMESPACE", "bench")


class Order(BaseModel):
    """The body of an order."""

    quantity: int


def routes(app: FastAPI, *extra: Any) -> None:
    """Add the two operations, the same in every application."""

    @app.post("/orders", status_code=201, dependencies=list(extra))
    async def order(body: Order) -> dict[str, object]:
        return {"order": 42, "quantity": body.quantity, "status": "paid"}

    @app.post("/outside", status_code=201)
    async def outside(body: Order) -> dict[str, object]:
        return {"order": 42, "quantity": body.quantity, "status": "paid"}


def gate() -> Dedup:
    """Return our gate, as a user would set it up."""
    return Dedup(URL, namespace=NAMESPACE, lease=LEASE_MS / 1000, ttl=60.0, timeout=5.0)


def bare() -> FastAPI:
    """Return the application without a gate."""
    app = FastAPI()
    routes(app)
    return app


def middleware() -> FastAPI:
    """Return the application with our middleware."""
    from fastdedup.integrations.asgi import IdempotencyMiddleware, everyone

    app = bare()
    app.add_middleware(IdempotencyMiddleware, dedup=gate(), principal=everyone, routes=["/orders"])
    return app


class PassThrough:
    """A middleware that does nothing: the least that any ASGI middleware costs."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        await self.app(scope, receive, send)


class ByHand:
    """The least that a middleware with redis-py does: it takes the key, and stores the body before it is sent."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._redis = Redis.from_url(URL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        key = next(value for name, value in scope["headers"] if name == b"idempotency-key")
        if not await self._redis.set(key, b"", nx=True, px=LEASE_MS):
            raise RuntimeError("a duplicate, and every key is fresh")
        held: list[Message] = []

        async def hold(message: Message) -> None:
            held.append(message)

        await self.app(scope, receive, hold)
        await self._redis.set(key, held[1]["body"], px=60_000)
        for message in held:
            await send(message)


def by_hand() -> FastAPI:
    """Return the application with the middleware by hand."""
    app = bare()
    app.add_middleware(ByHand)
    return app


def pass_through() -> FastAPI:
    """Return the application with a middleware that does nothing."""
    app = bare()
    app.add_middleware(PassThrough)
    return app


def dependency() -> FastAPI:
    """Return the application with our FastAPI dependency."""
    from fastdedup.integrations.fastapi import Claimed, Idempotency, everyone

    app = FastAPI()
    Idempotency(app, gate())
    claimed: Annotated[Claim | None, ...] = Claimed(principal=everyone)
    routes(app, claimed)
    return app


def asgi_idempotency_header() -> FastAPI:
    """Return the application with the peer asgi-idempotency-header, over the same Redis."""
    from idempotency_header_middleware import IdempotencyHeaderMiddleware
    from idempotency_header_middleware.backends import RedisBackend

    app = bare()
    app.add_middleware(IdempotencyHeaderMiddleware, backend=RedisBackend(Redis.from_url(URL), expiry=60))
    return app


def fastapi_idempotency() -> FastAPI:
    """Return the application with the peer fastapi-idempotency, with its memory store: it has no Redis store."""
    from fastapi_idempotency import IdempotencyMiddleware

    app = bare()
    app.add_middleware(IdempotencyMiddleware)
    return app


def idemkit() -> FastAPI:
    """Return the application with the peer idemkit, over the same Redis."""
    from idemkit import HttpConfig, IdempotencyMiddleware, RedisBackend

    app = bare()
    config = HttpConfig(
        scope_mode="single_tenant", lease_ttl_seconds=LEASE_MS / 1000, expires_after_seconds=60.0
    )
    # redis-py 8 has 100 connections by default and no waiting for one: some of the load would be answered 503.
    backend = RedisBackend.from_url(URL, namespace=NAMESPACE, max_connections=1000)
    app.add_middleware(IdempotencyMiddleware, backend=backend, config=config)
    return app


GATES: dict[str, Callable[[], FastAPI]] = {
    each.__name__: each
    for each in (
        bare,
        middleware,
        pass_through,
        dependency,
        by_hand,
        asgi_idempotency_header,
        fastapi_idempotency,
        idemkit,
    )
}


def create() -> FastAPI:
    """Return the application (uvicorn calls this), with the collector as every contestant has it."""
    app = GATES[os.environ["BENCH_GATE"]]()
    gc.collect()
    gc.freeze()
    if "BENCH_DEFAULT_GC" not in os.environ:
        gc.set_threshold(*GC_THRESHOLDS)
    return app
