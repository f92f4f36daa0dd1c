"""A claim that was lost in an outage, and whose body was stopped, is freed once the store answers.

Its renewals lay in the socket of a frozen Redis, and held the key for one lease more when that went on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route as Path

from fastdedup import ClaimLostError, Dedup, InProgressError
from fastdedup.integrations import asgi

from ..servers import RedisServer

WaitUntil = Callable[..., Any]
Freeze = Callable[[], Awaitable[None]]
LEASE = 2.0
SOON = 1.0
"""Seconds in which the key is free again; a renewal would hold it for the whole lease."""


async def by_block(dedup: Dedup, work: Freeze) -> None:
    async with dedup.claim("k", renew=True):
        await work()


async def by_lock(dedup: Dedup, work: Freeze) -> None:
    async with dedup.lock("k", renew=True):
        await work()


async def by_once(dedup: Dedup, work: Freeze) -> None:
    @dedup.once(key=lambda: "k", renew=True)
    async def run() -> None:
        await work()

    await run()


async def by_middleware(dedup: Dedup, work: Freeze) -> None:
    async def order(request: Any) -> PlainTextResponse:
        await work()
        return PlainTextResponse("done")

    app = Starlette(routes=[Path("/orders", order, methods=["POST"])])
    guarded = asgi.IdempotencyMiddleware(app, dedup, principal=asgi.everyone)
    transport = httpx.ASGITransport(guarded)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop.test") as client:
        answer = await client.post("/orders", headers={"idempotency-key": "k"})
    if answer.status_code == 409:
        raise InProgressError("in progress", retry_after=0.0)
    if answer.status_code == 503:
        raise ClaimLostError("lease-lost", outage=True)


@pytest.mark.parametrize("way", [by_block, by_lock, by_once, by_middleware])
async def test_no_late_renewal_holds_the_key(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil, way: Any
) -> None:
    async def frozen() -> None:
        redis_server.freeze()
        await asyncio.Event().wait()

    ran = []

    async def work() -> None:
        ran.append("again")

    async with (
        Dedup(redis_url, namespace="t", timeout=0.2, lease=LEASE) as dedup,
        Dedup(redis_url, namespace="t", lease=LEASE) as other,
    ):
        try:
            with pytest.raises(ClaimLostError):
                await way(dedup, frozen)
        finally:
            redis_server.thaw()

        async def runs() -> bool:
            with suppress(InProgressError):
                await way(other, work)
            return bool(ran)

        await wait_until(runs, description="the next owner runs", deadline=SOON)


async def test_a_body_that_ended_well_is_not_made_undone(redis_url: str, redis_server: RedisServer) -> None:
    """It has swallowed the cancellation: its work may be done, so only the lease's end frees its key."""
    async with Dedup(redis_url, namespace="t", timeout=0.2, lease=0.6) as dedup:

        async def work() -> None:
            async with dedup.claim("k", renew=True):
                redis_server.freeze()
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()

        try:
            with pytest.raises(ClaimLostError):
                await work()
        finally:
            redis_server.thaw()
        assert not len(dedup._namespace.connection.undo)
