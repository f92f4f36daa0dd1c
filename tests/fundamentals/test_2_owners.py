"""Step 2: who owns a key, for how long, and what happens to an owner that comes too late."""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from fastdedup import ClaimLostError, Dedup


async def test_an_owner_that_asks_again_gets_its_own_claim(url: str) -> None:
    """After a lost reply an owner asks again under its name, and is not told that it is a duplicate."""
    async with Dedup(url) as dedup:
        first = await dedup.claim("order:42", owner="worker-1")
        again = await dedup.claim("order:42", owner="worker-1")
        assert again.acquired
        assert again.fence == first.fence


async def test_when_the_lease_ends_the_next_one_takes_over(url: str) -> None:
    """An owner that died keeps nobody waiting for longer than its lease; the takeover has a higher fence."""
    async with Dedup(url) as dedup:
        dead = await dedup.claim("order:42", lease=0.05)
        successor = await dedup.claim("order:42", wait=5.0)
        assert successor.acquired
        assert successor.attempt == 2
        assert successor.fence > dead.fence


async def test_a_stale_owner_is_refused(url: str) -> None:
    """An owner that was overtaken cannot settle any more: it gets an error, and nothing is changed."""
    async with Dedup(url) as dedup:
        stale = await dedup.claim("order:42", lease=0.05)
        successor = await dedup.claim("order:42", wait=5.0)
        with pytest.raises(ClaimLostError):
            await stale.complete("too late")
        await successor.complete("in time")
        assert (await dedup.claim("order:42")).result == "in time"


async def test_renew_starts_the_lease_anew(url: str) -> None:
    """An owner whose work takes longer than planned renews its lease in time."""
    async with Dedup(url) as dedup:
        claim = await dedup.claim("order:42", lease=5.0)
        await claim.renew(lease=60.0)
        record = await dedup.get("order:42")
        assert record is not None
        assert record.lease is not None
        assert record.lease > 50.0


def claim_in_this_process(url: str) -> bool:
    """What each process of the next test does."""

    async def claim() -> bool:
        async with Dedup(url, timeout=5.0) as dedup:
            return (await dedup.claim("order:42")).acquired

    return asyncio.run(claim())


async def test_of_several_processes_exactly_one_is_first(redis_url: str) -> None:
    """Processes that share a Redis share the answer."""
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn")) as pool:
        claims = [loop.run_in_executor(pool, claim_in_this_process, redis_url) for _ in range(3)]
        assert sorted(await asyncio.gather(*claims)) == [False, False, True]
