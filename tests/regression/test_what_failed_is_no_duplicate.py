"""Fault: `first` and `consume` raised UnavailableError, and what they had taken was taken back a moment later.

A message that was returned for that error, and delivered again at once, was told that it was a duplicate: of the very
call that had failed. So its caller gets the error only once the store has answered what the call has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fastdedup import Dedup, Outcome, UnavailableError
from fastdedup import sync as synchronous

from ..proxy import Proxy, proxied
from ..servers import RedisServer

TIMEOUT = 0.6
TIMINGS = 6


class Asking:
    """A gate and its ledger."""

    def __init__(self, dedup: Dedup) -> None:
        self.tokens = dedup.tokens
        self.ledger = dedup.ledger("orders", window=60, capacity=1_000)


Call = Callable[[Asking, str], Awaitable[bool]]


async def first(at: Asking, name: str) -> bool:
    return await at.ledger.first(name)


async def first_many(at: Asking, name: str) -> bool:
    return (await at.ledger.first_many([name, name + "'"]))[0]


async def consume(at: Asking, token: str) -> bool:
    return await at.tokens.consume(token) is Outcome.ACQUIRED


async def make_id(at: Asking, call: Call, number: int) -> str:
    return await at.tokens.issue() if call is consume else f"order-{number}"


def hold_for(proxy: Proxy, seconds: float) -> None:
    """Keep all replies back for a while: what is asked takes effect, and its caller does not hear of it."""
    proxy.hold()
    asyncio.get_running_loop().call_later(seconds, proxy.forward)


@pytest.mark.parametrize("call", [first, first_many, consume])
async def test_another_gate_is_first_after_a_call_that_failed(
    redis_url: str, redis_server: RedisServer, call: Call
) -> None:
    """Whenever the replies come back within the two timeouts that such a call may take."""
    async with (
        proxied(redis_server) as proxy,
        Dedup(proxy.url, namespace="t", timeout=TIMEOUT) as dedup,
        Dedup(redis_url, namespace="t", timeout=5.0) as other,
    ):
        ours, theirs, failed = Asking(dedup), Asking(other), 0
        await call(ours, await make_id(theirs, call, -1))
        for number in range(TIMINGS):
            name = await make_id(theirs, call, number)
            await ours.ledger.seen(name)  # its form is known, so the next reply is the call's own
            hold_for(proxy, TIMEOUT * (0.4 + 1.2 * number / TIMINGS))
            try:
                was_first = await call(ours, name)
            except UnavailableError:
                failed += 1
                was_first = False
            assert await call(theirs, name) is not was_first
        assert failed


async def test_a_synchronous_call_that_failed_leaves_its_id_new(
    redis_url: str, redis_server: RedisServer
) -> None:
    async with proxied(redis_server) as proxy, Dedup(redis_url, namespace="t", timeout=5.0) as other:

        def ask(ledger: synchronous.Ledger) -> bool:
            return ledger.first("order-1")

        with synchronous.Dedup(proxy.url, namespace="t", timeout=TIMEOUT) as dedup:
            ledger = dedup.ledger("orders", window=60, capacity=1_000)
            await asyncio.to_thread(ledger.first, "warm")
            hold_for(proxy, TIMEOUT * 1.3)
            with pytest.raises(UnavailableError):
                await asyncio.to_thread(ask, ledger)
            assert await first(Asking(other), "order-1")


@pytest.mark.parametrize("call", [first, consume])
async def test_a_refused_call_waits_for_nothing(
    redis_url: str, redis_server: RedisServer, call: Call
) -> None:
    """A call that was never sent has left nothing; so an open breaker goes on to answer at once."""
    async with Dedup(redis_url, namespace="t", timeout=5.0, max_pending=1) as dedup:
        at = Asking(dedup)
        name = await make_id(at, call, 0)
        await call(at, await make_id(at, call, 1))
        with redis_server.frozen():
            under_way = asyncio.ensure_future(call(at, name))
            await asyncio.sleep(0)
            async with asyncio.timeout(2.0):
                with pytest.raises(UnavailableError):
                    await call(at, name)
        assert await under_way
