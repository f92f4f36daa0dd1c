"""In a test as in life an owner that renews finds out that it has its key no longer, and its body is stopped.

The gate of a test renewed the lease and threw the answer away, so that two owners could work for hours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fastdedup import ClaimLostError, Dedup
from fastdedup.testing import FakeStore, claims_of, fake_dedup, fake_sync_dedup

Passes = Callable[[], object]


async def _work_without_the_key(dedup: Dedup, passes: Passes, *, is_taken: bool) -> None:
    async with dedup.claim("k", renew=True):
        await dedup.forget("k")
        if is_taken:
            assert (await dedup.claim("k", lease=6_000.0)).acquired
        passes()
        await asyncio.sleep(5)


async def _loses(dedup: Dedup, passes: Passes, *, is_taken: bool) -> None:
    with pytest.raises(ClaimLostError, match="was lost while its body ran") as lost:
        await _work_without_the_key(dedup, passes, is_taken=is_taken)
    assert not lost.value.outage


@pytest.mark.parametrize("is_taken", [False, True], ids=["forgotten", "another owner's"])
async def test_the_body_is_stopped_on_redis_as_in_a_test(redis_url: str, is_taken: bool) -> None:
    async with Dedup(redis_url, lease=0.2) as dedup:
        await _loses(dedup, lambda: None, is_taken=is_taken)
    store = FakeStore()
    async with fake_dedup(store, lease=3_000.0) as dedup:  # no renewal in real time
        await _loses(dedup, lambda: store.clock.advance(1_000), is_taken=is_taken)


async def test_it_finds_out_at_a_third_of_the_lease() -> None:
    store = FakeStore()
    dedup = fake_dedup(store, lease=30.0)
    claim = await dedup.claim("k", renew=True)
    await dedup.forget("k")
    for seconds, lost in ((4.0, False), (5.9, False), (0.1, True)):
        store.clock.advance(seconds)
        assert claim.lost is lost
    with pytest.raises(ClaimLostError):
        await claim.complete()


async def test_who_has_the_key_then_keeps_it() -> None:
    store = FakeStore()
    dedup = fake_dedup(store, lease=30.0)
    former = await dedup.claim("k", renew=True)
    await dedup.forget("k")
    async with dedup.claim("k", renew=True) as present:
        for _ in range(10):
            store.clock.advance(3_600)
        assert (former.lost, present.lost) == (True, False)
        with pytest.raises(ClaimLostError):
            await former.complete()
    assert claims_of(dedup, "k").acquisitions[-1].end == "completed"


async def test_what_was_settled_meanwhile_is_not_lost() -> None:
    store = FakeStore()
    dedup = fake_dedup(store, lease=30.0)
    claim = await dedup.claim("k", renew=True)
    await claim.complete()
    await dedup.forget("k")
    store.clock.advance(60)
    assert not claim.lost


def test_a_synchronous_owner_is_told_at_once() -> None:
    store = FakeStore()
    dedup: Any = fake_sync_dedup(store, lease=30.0)
    claim = dedup.claim("k", renew=True)
    dedup.forget("k")
    store.clock.advance(10)
    assert claim.lost
    with pytest.raises(ClaimLostError):
        claim.complete()
    dedup.close()
