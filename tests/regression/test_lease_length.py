"""A lease lasts its full length by the store's clock: it ended up to 1 ms early, and two owners overlapped."""

from __future__ import annotations

import pytest

from fastdedup import Dedup
from fastdedup.protocol.operations import ClaimOp, Mode, RenewOp, Verb, Verdict, terms
from fastdedup.protocol.owners import draw_owner
from fastdedup.stores.memory import MemoryStore
from fastdedup.testing import Clock

LEASE_US = 3_000


async def test_redis_takes_over_no_claim_before_its_lease_is_over(redis_url: str) -> None:
    """Both fences are the server's microseconds: of the claim, and of the takeover."""
    async with Dedup(redis_url, namespace="t") as dedup:
        for number in range(100):
            first = await dedup.claim(f"k{number}", lease=LEASE_US / 1_000_000, ttl=60)
            while not (second := await dedup.claim(f"k{number}", lease=60)).acquired:
                pass
            assert second.fence - first.fence >= LEASE_US


async def test_redis_gives_a_renewed_lease_its_full_length(redis_url: str) -> None:
    async with Dedup(redis_url, namespace="t") as dedup:
        for number in range(50):
            claim = await dedup.claim(f"k{number}", lease=60, ttl=60)
            before = (await dedup.claim(f"clock{number}", lease=60)).fence
            await claim.renew(LEASE_US / 1_000_000)
            while not (second := await dedup.claim(f"k{number}", lease=60)).acquired:
                pass
            assert second.fence - before >= LEASE_US


@pytest.mark.parametrize("renews", [False, True])
async def test_the_memory_store_keeps_a_lease_to_its_end(renews: bool) -> None:
    """Claimed at nine tenths of a millisecond, asked for a hundredth before the end, and at it."""
    clock = Clock(1_700_000_000.0009)
    store = MemoryStore(clock=clock)
    wanted = terms(Mode.CLAIM, LEASE_US // 1000, 60_000, False)
    owner = draw_owner()

    async def outcome() -> str:
        [reply] = await store.execute(Verb.CLAIM, [ClaimOp(b"k", wanted, draw_owner(), None)])
        assert isinstance(reply, Verdict)
        return reply.outcome.value

    await store.execute(Verb.CLAIM, [ClaimOp(b"k", wanted, owner, None)])
    if renews:
        await store.execute(Verb.RENEW, [RenewOp(b"k", owner, 0, LEASE_US // 1000, 60_000)])
    clock.advance((LEASE_US - 10) / 1_000_000)
    assert await outcome() == "in_progress"
    clock.advance(0.001)
    assert await outcome() == "acquired"


async def test_the_time_left_never_exceeds_the_lease(redis_url: str) -> None:
    """Also in the millisecond in which it begins."""
    async with Dedup(redis_url, namespace="t") as dedup:
        await dedup.claim("k", lease=0.5)
        found = await dedup.claim("k")
        assert found.retry_after is not None
        assert 0.0 < found.retry_after <= 0.5
