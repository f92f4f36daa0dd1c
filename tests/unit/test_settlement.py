"""A claim's life, which integrations steer: its states, and what `abandon` leaves to the end of the guarded work."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from fastdedup import Claim, ClaimLostError, ConfigError, Dedup, UnavailableError
from fastdedup.core.held_claim import Life
from fastdedup.testing import FakeStore, fake_dedup


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def dedup(store: FakeStore) -> Dedup:
    return fake_dedup(store)


@pytest.mark.parametrize("how", ["complete", "fail", "release"])
async def test_a_claim_is_live_then_settled(dedup: Dedup, how: str) -> None:
    claim = await dedup.claim("key")
    assert claim.settlement.state is Life.LIVE
    await getattr(claim, how)()
    assert claim.settlement.state is Life.SETTLED


async def test_an_outcome_that_the_store_does_not_have_is_being_recorded(
    dedup: Dedup, store: FakeStore
) -> None:
    claim = await dedup.claim("key", lease=5.0)
    with store.outage("refused"):
        recording = asyncio.ensure_future(claim.complete(1, within=0.05))
        await asyncio.sleep(0)
        states = [claim.settlement.state]
        with pytest.raises(UnavailableError):
            await recording
        states.append(claim.settlement.state)
    assert states == [Life.RECORDING, Life.RECORDING]
    await claim.complete(1)
    assert claim.settlement.state is Life.SETTLED


async def test_a_release_under_way_is_being_recorded(dedup: Dedup) -> None:
    claim = await dedup.claim("key")
    releasing = asyncio.ensure_future(claim.release())
    await asyncio.sleep(0)
    assert claim.settlement.state is Life.RECORDING
    await releasing


async def test_a_lease_that_ended_in_an_outage_is_lost_until_its_result_is_recorded(dedup: Dedup) -> None:
    claim = await dedup.claim("key")
    claim.settlement.lose(outage=True)
    assert claim.settlement.state is Life.LOST
    await claim.complete(1)
    assert claim.settlement.state is Life.SETTLED


async def test_an_abandoned_claim_is_not_settled_on_leaving(dedup: Dedup) -> None:
    async with dedup.claim("key") as claim:
        claim.settlement.abandon()
    assert claim.settlement.state is Life.ABANDONED
    assert not (await dedup.claim("key")).acquired


async def test_a_cancellation_by_a_lost_lease_is_taken_back_though_the_claim_was_abandoned(
    dedup: Dedup,
) -> None:
    """A client library may have swallowed it. Left behind, it would end the next work of this task."""
    task = asyncio.current_task()
    assert task is not None

    async def work() -> None:
        async with dedup.claim("key") as claim:
            claim.settlement.lose(outage=False)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(1)
            claim.settlement.abandon()

    with pytest.raises(ClaimLostError):
        await work()
    assert task.cancelling() == 0


@pytest.mark.parametrize("after", [-1.0, float("nan"), None, "soon"])
async def test_a_key_is_not_freed_after_what_is_no_time(dedup: Dedup, after: Any) -> None:
    claim = await dedup.claim("key")
    with pytest.raises(ConfigError, match="after must be"):
        await claim.settlement.free(after=after)
    assert not (await dedup.claim("key")).acquired


@pytest.mark.parametrize("name", ["complete", "fail", "release", "renew"])
def test_frameworks_see_that_it_is_to_be_awaited(name: str) -> None:
    """Starlette's BackgroundTask runs any other function in a thread, and drops what it returns."""
    assert inspect.iscoroutinefunction(getattr(Claim, name))
