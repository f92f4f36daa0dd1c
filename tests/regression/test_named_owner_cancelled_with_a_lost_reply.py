"""A named owner that was cancelled while its first reply was lost left the key held, although it held nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fastdedup import Dedup

from ..proxy import Proxy, proxied
from ..servers import RedisServer

WaitUntil = Callable[..., Any]
Ask = Callable[[Dedup], Any]
SOON = 1.0


@asynccontextmanager
async def gates(server: RedisServer) -> AsyncIterator[tuple[Dedup, Proxy, Dedup]]:
    async with (
        proxied(server) as proxy,
        Dedup(proxy.url, namespace="t", timeout=5.0, lease=60.0) as dedup,
        Dedup(server.url, namespace="t", timeout=5.0, lease=60.0) as other,
    ):
        for _ in range(5):
            await dedup.claim("warm", owner="w1")
        yield dedup, proxy, other


async def is_cancelled_without_its_reply(
    dedup: Dedup, proxy: Proxy, server: RedisServer, wait_until: WaitUntil, ask: Ask
) -> None:
    """Cancel a claim whose first reply is lost, before the second comes.

    Redis hangs a moment, so that its clock is past what it can have shown when the claim was sent.
    """
    lost = proxy.lost["claim"]
    proxy.lose("claim")
    with server.frozen():
        asked = asyncio.ensure_future(ask(dedup))
        seen = proxy.seen["claim"]
        await wait_until(lambda: proxy.seen["claim"] > seen, description="the claim is under way")
    proxy.hold()
    await wait_until(lambda: proxy.lost["claim"] > lost, description="its reply is lost")
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    proxy.forward()


async def by_claim(dedup: Dedup) -> Any:
    return await dedup.claim("k", owner="w1")


async def by_list(dedup: Dedup) -> Any:
    return await dedup.claim_many(["k", "l"], owner="w1")


async def by_waiting(dedup: Dedup) -> Any:
    return await dedup.claim("k", owner="w1", wait=10.0)


every_way = pytest.mark.parametrize("ask", [by_claim, by_list, by_waiting])


@every_way
async def test_the_key_that_it_did_not_hold_is_freed(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil, ask: Ask
) -> None:
    async with gates(redis_server) as (dedup, proxy, other):
        await is_cancelled_without_its_reply(dedup, proxy, redis_server, wait_until, ask)

        async def taken() -> bool:
            return (await other.claim("k", owner="w2")).acquired

        await wait_until(taken, description="another owner acquires the key", deadline=SOON)


@every_way
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_the_key_that_it_held_before_stays_its_own(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil, ask: Ask, elsewhere: bool
) -> None:
    """Held by this gate, or by another process of the same name."""
    async with gates(redis_server) as (dedup, proxy, other):
        held = await (other if elsewhere else dedup).claim("k", owner="w1")
        await is_cancelled_without_its_reply(dedup, proxy, redis_server, wait_until, ask)
        engine = dedup._namespace.connection.engine
        assert engine is not None
        await wait_until(lambda: not engine.pending, description="all is answered")
        await dedup.get("k")
        assert not (await other.claim("k", owner="w2")).acquired
        await held.complete("done")


async def test_a_first_claim_whose_clock_nobody_knows_is_left_alone(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil
) -> None:
    """A gate that has had no reply yet cannot tell its own claim from an older one."""
    async with (
        proxied(redis_server) as proxy,
        Dedup(proxy.url, namespace="t", timeout=5.0) as dedup,
        Dedup(redis_url, namespace="t", timeout=5.0) as other,
    ):
        held = await other.claim("k", owner="w1")
        await is_cancelled_without_its_reply(dedup, proxy, redis_server, wait_until, by_claim)
        await dedup.get("k")
        await held.complete("done")
