"""In a test as in life `LocalLRU` renews what it has answered, however long the outage lasts.

The gate of a test looked for the lease in the store, where a claim of the policy has none: the first move of the
clock stopped its body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fastdedup import ClaimLostError, Dedup, LocalLRU
from fastdedup.errors import UnavailableError
from fastdedup.protocol.operations import Op, RenewOp, Reply
from fastdedup.testing import FakeStore, assert_claimed_once, fake_dedup, fake_sync_dedup


class Unrenewing(LocalLRU):
    """A policy that renews no claim."""

    def answer(self, op: Op, error: UnavailableError) -> Reply:
        if isinstance(op, RenewOp):
            raise error
        return super().answer(op, error)


async def _work_until_the_lease_is_over(dedup: Dedup, store: FakeStore) -> None:
    async with dedup.claim("k", renew=True) as claim:
        store.clock.advance(29.9)
        assert not claim.lost
        store.clock.advance(0.1)
        await asyncio.sleep(60)


async def test_it_is_renewed_while_the_outage_lasts() -> None:
    store = FakeStore()
    async with fake_dedup(store, lease=30.0, on_unavailable=LocalLRU()) as dedup:
        with store.outage():
            async with dedup.claim("k", renew=True) as claim:
                for seconds in (0.001, 10, 90):
                    store.clock.advance(seconds)
                    await asyncio.sleep(0)
                    assert not (await dedup.claim("k")).acquired, "it is still held"
                assert (claim.degraded, claim.lost) == (True, False)
            assert_claimed_once(dedup, "k", end="completed")


async def test_it_is_renewed_until_the_store_has_it(wait_until: Callable[..., Any]) -> None:
    """The outage has ended, and the policy keeps the record still."""
    store = FakeStore()
    async with fake_dedup(store, lease=30.0, on_unavailable=LocalLRU()) as dedup:
        store.outage.start()
        async with dedup.claim("k", renew=True) as claim:
            store.outage.stop()
            store.clock.advance(90)
            assert not (await dedup.claim("k")).acquired
            await wait_until(lambda: len(store) == 1, description="the store has it")
            store.clock.advance(90)
            assert not (await dedup.claim("k")).acquired
            await claim.complete("done")
        assert (await dedup.claim("k")).result == "done"


async def test_where_the_policy_does_not_renew_it_the_end_of_the_lease_stops_the_body() -> None:
    store = FakeStore()
    async with fake_dedup(store, lease=30.0, on_unavailable=Unrenewing()) as dedup:
        with store.outage(), pytest.raises(ClaimLostError, match="was lost while its body ran") as lost:
            await _work_until_the_lease_is_over(dedup, store)
        assert lost.value.outage


def test_a_synchronous_one_is_renewed() -> None:
    store = FakeStore()
    dedup = fake_sync_dedup(store, lease=30.0, on_unavailable=LocalLRU())
    with store.outage():
        with dedup.claim("k", renew=True) as claim:
            store.clock.advance(90)
            assert not dedup.claim("k").acquired
        assert not claim.lost
    dedup.close()
