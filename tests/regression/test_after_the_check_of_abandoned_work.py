"""What follows the check of `resolve=`: the lease is looked at, is whole again, and an answer cannot hold the key.

Synchronous work ran although the lease was lost during the check, and beside the new owner; the check's time was
taken from the lease of the work; and an answer that cannot be stored left a claim that was renewed until the garbage
collector came.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from fastdedup import ClaimLostError, Dedup, Outcome, Resolution, ResultError, ResultTooLargeError, Takeover
from fastdedup.codec import UNSTORABLE
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.testing import FakeStore


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def sync(store: FakeStore) -> Iterator[SyncDedup]:
    with SyncDedup(store, namespace="shop", lease=30.0) as dedup:
        dedup.claim("order:42")
        store.clock.advance(31)  # its owner died
        yield dedup


async def left_behind(dedup: Dedup, store: FakeStore) -> None:
    await dedup.claim("order:42")
    store.clock.advance(31)


def test_synchronous_work_does_not_begin_under_a_lost_lease(sync: SyncDedup, store: FakeStore) -> None:
    def check(takeover: Takeover) -> Resolution:
        with store.outage("refused"):
            store.clock.advance(31)  # no renewal gets through
        assert sync.claim("order:42", wait=5.0).acquired, "another worker takes over"
        return Resolution.not_done()

    with pytest.raises(ClaimLostError):
        sync.claim("order:42", resolve=check, renew=True)
    assert sync.claim("order:42").outcome is Outcome.IN_PROGRESS


async def test_the_work_has_a_whole_lease(redis_url: str) -> None:
    async with Dedup(redis_url, namespace="shop", lease=5.0) as dedup:
        owner = await dedup.claim("order:42")
        await owner.release()  # the next one is attempt 2
        seen: list[float] = []

        async def check(takeover: Takeover) -> Resolution:
            async def lease() -> float:
                record = await dedup.get("order:42")
                assert record is not None
                assert record.lease is not None
                return record.lease

            while (left := await lease()) > 4.9:
                pass
            seen.append(left)
            return Resolution.not_done()

        claim = await dedup.claim("order:42", resolve=check)
        record = await dedup.get("order:42")
        assert record is not None
        assert record.lease is not None
        assert record.lease > seen[0], "although time has passed since"
        await claim.complete()


@pytest.mark.parametrize(
    ("answer", "error"),
    [(Resolution.done({1, 2}), ResultError), (Resolution.unknown("x" * 2000), ResultTooLargeError)],
)
async def test_an_answer_that_cannot_be_stored_is_a_failure(
    answer: Resolution, error: Any, store: FakeStore
) -> None:
    """As a result is that cannot be stored: the work was done."""

    async def check(takeover: Takeover) -> Resolution:
        return answer

    async with Dedup(store, namespace="shop", max_result=1000) as dedup:
        await left_behind(dedup, store)
        with pytest.raises(error):
            await dedup.claim("order:42", resolve=check)
        found = await dedup.claim("order:42")
        assert (found.outcome, found.error["message"]) == (Outcome.FAILED, UNSTORABLE)


def test_without_asyncio_too(sync: SyncDedup) -> None:
    with pytest.raises(ResultError):
        sync.claim("order:42", resolve=lambda takeover: Resolution.done({1, 2}))
    assert sync.claim("order:42").outcome is Outcome.FAILED


async def test_a_result_that_cannot_be_stored_leaves_no_cycle(store: FakeStore) -> None:
    """So a claim that the program forgot is gone at once, and its renewal with it."""
    async with Dedup(store, namespace="shop") as dedup:
        claim = await dedup.claim("order:42")
        before = sys.getrefcount(claim)
        with suppress(ResultError):
            await claim.complete({1, 2})
        assert sys.getrefcount(claim) == before
