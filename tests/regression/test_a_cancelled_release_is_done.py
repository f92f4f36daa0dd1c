"""A release whose caller is cancelled while the store is silent frees the key once the store is back.

It was forgotten: the key stayed held for the rest of the lease, a second release said "released already", and leaving
the block did nothing.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fastdedup import Claim, Dedup, Outcome, UnavailableError
from fastdedup.protocol.operations import Op, ReadOp, Reply, Verb
from fastdedup.stores.memory import MemoryStore
from fastdedup.sync import Dedup as SyncDedup

from ..proxy import Proxy, proxied
from ..servers import RedisServer

WaitUntil = Callable[..., Any]
Make = Callable[[Dedup], Awaitable[Claim]]


async def by_claim(dedup: Dedup) -> Claim:
    return await dedup.claim("k")


async def by_name(dedup: Dedup) -> Claim:
    return await dedup.claim("k", owner="w1")


async def by_list(dedup: Dedup) -> Claim:
    return (await dedup.claim_many(["k"]))[0]


async def by_token(dedup: Dedup) -> Claim:
    return await dedup.tokens.redeem(await dedup.tokens.issue())


@asynccontextmanager
async def cut_off(server: RedisServer) -> AsyncIterator[tuple[Dedup, Proxy]]:
    """Yield a gate, and the proxy that can keep it from its Redis."""
    async with (
        proxied(server) as proxy,
        Dedup(proxy.url, namespace="t", timeout=0.15, lease=60.0) as dedup,
    ):
        yield dedup, proxy


async def release_in_silence(claim: Claim, proxy: Proxy) -> None:
    """Release while nothing passes, and cancel that before it has an answer."""
    proxy.swallow()
    task = asyncio.ensure_future(claim.release())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("make", [by_claim, by_name, by_list, by_token])
async def test_the_key_is_free_once_the_store_is_back(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil, make: Make
) -> None:
    async with cut_off(redis_server) as (dedup, proxy), Dedup(redis_url, namespace="t") as other:
        claim = await make(dedup)
        await release_in_silence(claim, proxy)
        proxy.forward()

        async def free() -> bool:
            [record] = await other._namespace.connection.store.execute(Verb.READ, [ReadOp(claim._hold[0])])
            return getattr(record, "state", "") in ("R", "I")

        await wait_until(free, description="the key is free")


@pytest.mark.parametrize("cancelled", [True, False])
async def test_leaving_the_block_never_completes_a_release(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil, cancelled: bool
) -> None:
    """Not where the release was cancelled, and not where it had no answer."""
    async with cut_off(redis_server) as (dedup, proxy), Dedup(redis_url, namespace="t") as other:
        async with dedup.claim("k") as claim:
            if cancelled:
                await release_in_silence(claim, proxy)
            else:
                proxy.swallow()
                with pytest.raises(UnavailableError):
                    await claim.release()
            proxy.forward()

        async def taken() -> bool:
            found = await other.claim("k")
            assert found.outcome is not Outcome.SUCCEEDED
            return found.acquired

        await wait_until(taken, description="another caller gets the key")


class Interrupted(Exception):
    """What a signal's handler raises."""


class Mute(MemoryStore):
    """A store that now and then answers nothing and does nothing."""

    mute = False

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        if self.mute:
            await asyncio.Event().wait()
        return await super().execute(verb, ops)


def test_without_asyncio() -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    store = Mute()
    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        with SyncDedup(store, namespace="shop", lease=60.0, timeout=0.3) as dedup:
            claim = dedup.claim("k")
            store.mute = True
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(Interrupted):
                claim.release()
            store.mute = False
            assert dedup.claim("k", wait=10.0).acquired
    finally:
        signal.signal(signal.SIGALRM, former)
