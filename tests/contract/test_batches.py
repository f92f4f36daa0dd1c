"""Guarantee 13, and what the engine promises: few calls, no orphans, no crossed answers."""

from __future__ import annotations

import asyncio

import pytest

from fastdedup import Dedup, UsageError

from ..servers import RedisServer
from ..stores import Backend


async def test_concurrent_claims_get_their_own_answers(dedup: Dedup) -> None:
    """Mixed verbs, keys and terms at once: no reply goes to another caller."""

    async def cycle(n: int) -> None:
        claim = await dedup.claim(f"key-{n}", owner=f"owner-{n}", lease=10 + n % 7, fingerprint=f"f{n}")
        assert claim.acquired
        assert claim.owner == f"owner-{n}"
        assert claim.lease == 10 + n % 7
        await claim.renew(20)
        await claim.complete({"n": n})
        again = await dedup.claim(f"key-{n}", fingerprint=f"f{n}")
        assert again.result == {"n": n}

    await asyncio.gather(*(cycle(n) for n in range(300)))


async def test_scripts_flushed_under_load_lose_nothing(dedup: Dedup, backend: Backend) -> None:
    if backend.raw is None:
        return  # a memory store has no scripts
    raw = backend.raw
    won = 0

    async def claimant(n: int) -> None:
        nonlocal won
        for step in range(20):
            claim = await dedup.claim(f"key-{step}-{n % 25}")
            won += claim.acquired
            if claim.acquired:
                await claim.complete(step)

    async def flusher() -> None:
        for _ in range(20):
            raw.script_flush()
            await asyncio.sleep(0)

    await asyncio.gather(flusher(), *(claimant(n) for n in range(100)))
    assert won == 20 * 25


async def test_claims_of_one_loop_reach_redis_in_few_calls(redis_url: str, redis_server: RedisServer) -> None:
    async with Dedup(redis_url, namespace="t") as dedup:
        with redis_server.client() as raw:
            raw.config_resetstat()
            await asyncio.gather(*(dedup.claim(f"key-{n}") for n in range(1000)))
            stats = raw.info("commandstats")
            calls = sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))
            assert calls <= 8
            raw.config_resetstat()
            claims = await asyncio.gather(*(dedup.claim("one key") for _ in range(1000)))
            assert sum(claim.acquired for claim in claims) == 1
            assert raw.info("commandstats")["cmdstat_set"]["calls"] == 1


async def test_aclose_answers_what_was_accepted(backend: Backend) -> None:
    dedup = await backend.make().open()
    tasks = [asyncio.create_task(dedup.claim(f"key-{n}")) for n in range(1000)]
    await asyncio.sleep(0)
    await dedup.aclose()
    claims = await asyncio.gather(*tasks)
    assert all(claim.acquired for claim in claims)
    with pytest.raises(UsageError, match="closed"):
        await dedup.claim("late")
    await dedup.aclose()


async def test_a_claim_call_is_a_coroutine_to_asyncio(dedup: Dedup) -> None:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(dedup.claim("a"))
    assert task.result().acquired
    assert (await asyncio.wait_for(dedup.claim("b"), 5)).acquired
    [claim] = await asyncio.gather(dedup.claim("c"))
    assert claim.acquired
    call = dedup.claim("never sent")
    call.close()
    assert (await dedup.claim("never sent")).attempt == 1
