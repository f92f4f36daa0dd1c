"""A process whose clock was ahead made fences in an outage that fell afterwards, or that the store did not adopt."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fastdedup import Dedup, LocalLRU
from fastdedup.events import Unreplayed

from ..outage.test_reconciliation import WaitUntil, site_of
from ..servers import RedisServer
from ..sidecars import Sidecar
from ..stepping import clock_us

HOUR = 3600.0


@pytest.mark.parametrize("ahead", [30.0, -HOUR, 72 * HOUR])
@pytest.mark.parametrize("has_asked", [False, True], ids=["only connected", "has asked before"])
async def test_local_fences_follow_the_stores_clock(
    ahead: float, has_asked: bool, wait_until: WaitUntil
) -> None:
    """Between the fences that the store gave before the outage and those that it gives afterwards."""
    async with site_of("killed", wait_until) as site:
        before, end = clock_us(site.server), time.monotonic
        started = end()
        gate = await site.gate(clock=lambda: time.time() + ahead)
        if has_asked:
            await gate.dedup.claim("another", lease=60)
        site.strike()
        fences = []
        for _ in range(3):
            async with gate.dedup.lock("k", lease=60) as lock:
                assert lock.degraded
                fences.append(lock.fence)
        await site.heal()
        await gate.came_home()
        assert before < fences[0] < fences[1] < fences[2]
        assert fences[2] < before + (end() - started) * 1_000_000
        assert gate.of(Unreplayed) == []
        async with gate.dedup.lock("k", lease=60) as lock:
            assert (lock.degraded, lock.fence > fences[2]) == (False, True)


async def test_a_fence_rises_after_adoption_and_expiry(wait_until: WaitUntil) -> None:
    """Another process, which has not seen the local fence, asks after the record has expired."""
    async with site_of("killed", wait_until) as site:
        gate, other = await site.gate(clock=lambda: time.time() + 30.0), await site.gate()
        site.strike()
        claim = await gate.dedup.claim("k", lease=60)
        assert claim.degraded
        await site.heal()
        await gate.came_home()
        with site.server.client() as raw:
            raw.flushdb()  # the record has expired
        assert (await other.dedup.claim("k")).fence > claim.fence


async def test_the_time_since_the_store_was_heard_counts(wait_until: WaitUntil) -> None:
    """Else another process's claim, made since, would have the higher fence."""
    async with site_of("killed", wait_until) as site:
        ours, theirs = await site.gate(clock=lambda: time.time() + 30.0), await site.gate()
        await ours.dedup.claim("first", lease=60)
        async with theirs.dedup.lock("k", lease=60) as lock:
            fence = lock.fence
        site.strike()
        claim = await ours.dedup.claim("k", lease=60)
        assert (claim.degraded, claim.fence > fence) == (True, True)


async def test_local_fences_before_a_sidecar_follow_its_stores_clock() -> None:
    server = RedisServer().start()
    sidecar = Sidecar(server.url).start()
    try:
        before = clock_us(server)
        policy = LocalLRU(clock=lambda: time.time() + HOUR)
        async with Dedup(sidecar.url, namespace="t", on_unavailable=policy) as dedup:
            first = await dedup.claim("first")
            sidecar.kill()
            claim = await dedup.claim("k")
            assert (first.degraded, claim.degraded) == (False, True)
            assert before < first.fence < claim.fence < clock_us(server)
    finally:
        sidecar.stop()
        server.stop()


async def test_a_process_that_never_heard_the_store_uses_its_own_clock(wait_until: WaitUntil) -> None:
    policy, nobody = LocalLRU(clock=lambda: 1_000.0), "redis://localhost:1/0"
    async with Dedup(nobody, namespace="t", on_unavailable=policy) as dedup:
        claim: Any = await dedup.claim("k")
        assert 1_000_000_000 <= claim.fence < 1_000_002_000


async def test_a_record_with_an_absurd_fence_spoils_no_other_keys_fences(wait_until: WaitUntil) -> None:
    """Its own key's fences go on from there; those of the others are the store's time."""
    async with site_of("killed", wait_until) as site:
        fence = 2**52
        record = b"\1P" + fence.to_bytes(7, "big") + bytes(5) + b"\1\0\1\0" + b"0123456789"
        with site.server.client() as raw:
            raw.set("shop:=bad", record, px=60_000)
        gate = await site.gate()
        assert (await gate.dedup.claim("bad", lease=60)).fence == fence + 1
        now_us = clock_us(site.server)
        site.strike()
        good = await gate.dedup.claim("good", lease=60)
        assert (good.degraded, good.fence < now_us + HOUR * 1_000_000) == (True, True)
