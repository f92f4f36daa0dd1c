"""Guarantee 14: waiting by news; renewal; locks; `once`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fastdedup import (
    ClaimLostError,
    Dedup,
    FailedError,
    InProgressError,
    MismatchError,
    Outcome,
)
from fastdedup.events import BreakerOpened, Degraded, KeyForgotten, LeaseLost, Unreplayed

from ..stores import Backend, on_both_faces
from ..waiting import acquired, wait_until

OUTAGE = (Degraded, BreakerOpened, Unreplayed)
LONG = 30.0
"""A lease far beyond the test: what wakes a waiter is the news."""


async def waiting(dedup: Any, count: int) -> None:
    watched = dedup.gate.connection.wakeups.waiting
    await wait_until(lambda: sum(watched.values()) >= count, description=f"{count} callers wait")


@pytest.mark.parametrize("settle", ["complete", "fail", "release", "forget"])
async def test_a_waiter_is_woken_by_whoever_frees_the_key(backend: Backend, settle: str) -> None:
    """From another gate, with a connection of its own, where the store has such."""
    async with backend.make() as dedup, backend.make() as other:
        waiter = dedup if backend.name == "memory" else other
        claim = await dedup.claim("key", lease=LONG)
        tasks = [asyncio.create_task(waiter.claim("key", lease=LONG, wait=LONG)) for _ in range(10)]
        await waiting(waiter, 10)
        if settle == "forget":
            await dedup.forget("key")
        else:
            await getattr(claim, settle)()
        if settle in ("complete", "fail"):
            outcomes = {(await task).outcome for task in tasks}
            assert outcomes == {Outcome.SUCCEEDED if settle == "complete" else Outcome.FAILED}
            return
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        [winner] = [task.result() for task in done]
        assert winner.acquired
        await winner.complete("second try")
        results = [(await task).result for task in tasks if task not in done]
        assert results == ["second try"] * 9
        assert waiter.gate.connection.wakeups.waiting == {}


@on_both_faces
async def test_a_waiter_takes_over_when_the_lease_ends(dedup: Dedup) -> None:
    """Nobody frees the key of an owner that died: the waiter's own alarm does."""
    await dedup.claim("key", lease=0.03)
    claim = await dedup.claim("key", wait=LONG)
    assert claim.acquired
    assert claim.attempt == 2


async def test_a_waiter_hears_of_a_lease_that_is_shortened(dedup: Dedup) -> None:
    """It would else sleep until the lease that it knows of ends."""
    claim = await dedup.claim("key", lease=LONG)
    tasks = [asyncio.create_task(dedup.claim("key", lease=LONG, wait=LONG)) for _ in range(3)]
    await waiting(dedup, 3)
    await claim.renew(0.05)
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    [winner] = [task.result() for task in done]
    assert (winner.acquired, winner.attempt) == (True, 2)
    await winner.complete("second try")
    assert [(await task).result for task in tasks if task not in done] == ["second try"] * 2


@on_both_faces
async def test_patience_ends_with_in_progress(dedup: Dedup) -> None:
    await dedup.claim("key", lease=LONG)
    claim = await dedup.claim("key", wait=0.02)
    assert claim.outcome is Outcome.IN_PROGRESS


async def test_a_cancelled_waiter_leaves_nothing(dedup: Dedup) -> None:
    holder = await dedup.claim("key", lease=LONG)
    tasks = [asyncio.create_task(dedup.claim("key", wait=LONG)) for _ in range(5)]
    await waiting(dedup, 5)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert dedup.gate.connection.wakeups.waiting == {}
    await holder.release()
    assert (await dedup.claim("key")).acquired


@on_both_faces
async def test_renewal_keeps_the_claim_until_settled(dedup: Dedup) -> None:
    async with dedup.claim("key", lease=2.4) as claim:
        first = await dedup.get("key")
        assert first is not None

        renewed = 0
        left = first.lease

        async def renewed_twice() -> bool:
            nonlocal renewed, left
            record = await dedup.get("key")
            assert record is not None
            assert record.attempt == 1
            renewed += record.lease > left
            left = record.lease
            return renewed >= 4

        await wait_until(renewed_twice, description="the lease is renewed again and again")
    assert not claim.lost
    assert (await dedup.claim("key")).outcome is Outcome.SUCCEEDED


async def test_a_lost_lease_cancels_the_body(backend: Backend) -> None:
    """The body stops with ClaimLostError before it can act as an owner any longer."""
    events: list[Any] = []
    async with backend.make(on_event=events.append) as dedup:

        async def work() -> None:
            async with dedup.claim("key", lease=0.06, renew=True) as claim:
                claims.append(claim)
                await dedup.forget("key")
                await asyncio.Event().wait()

        claims: list[Any] = []
        with pytest.raises(ClaimLostError, match="was lost while its body ran"):
            await work()
        [claim] = claims
        assert claim.lost
        told = [type(event) for event in events if not isinstance(event, (*OUTAGE, KeyForgotten))]
        assert told == [LeaseLost]
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


@on_both_faces
async def test_a_renewed_claim_that_is_forgotten_about_is_not_renewed_for_ever(dedup: Dedup) -> None:
    await dedup.claim("key", lease=0.06, renew=True)
    await acquired(dedup, "key")


@on_both_faces
async def test_a_lock_excludes_and_its_fence_rises(dedup: Dedup) -> None:
    inside = 0
    fences = []

    async def work() -> None:
        nonlocal inside
        async with dedup.lock("key", lease=LONG, wait=LONG) as lock:
            inside += 1
            assert inside == 1
            fences.append(lock.fence)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(work() for _ in range(10)))
    assert fences == sorted(set(fences))
    assert len(fences) == 10


@on_both_faces
async def test_a_held_lock_says_when_to_come_back(dedup: Dedup) -> None:
    async with dedup.lock("key", lease=LONG) as lock:
        assert lock.key == "key"
        await lock.renew()
        with pytest.raises(InProgressError) as caught:
            async with dedup.lock("key"):
                raise AssertionError("two holders")
        assert 25 < caught.value.retry_after <= LONG
        assert (await dedup.claim("key")).acquired, "locks and claims of one name do not meet"
    with pytest.raises(ZeroDivisionError):
        async with dedup.lock("key"):
            raise ZeroDivisionError
    async with dedup.lock("key") as again:
        assert again.fence > lock.fence


@on_both_faces
async def test_a_lock_that_ran_out_is_an_error_on_leaving(dedup: Dedup) -> None:
    async def overtaken() -> None:
        async with dedup.lock("key", lease=0.02), dedup.lock("key", wait=LONG):
            pass

    with pytest.raises(ClaimLostError):
        await overtaken()


@on_both_faces
async def test_once_runs_once_and_replays(dedup: Dedup) -> None:
    runs = []

    @dedup.once(key=lambda order: f"order:{order}", wait=LONG)
    async def place(order: int) -> dict[str, int]:
        """Docs kept."""
        runs.append(order)
        await asyncio.sleep(0)
        return {"order": order}

    results = await asyncio.gather(*(place(7) for _ in range(20)))
    assert results == [{"order": 7}] * 20
    assert runs == [7]
    assert place.__doc__ == "Docs kept."


@on_both_faces
async def test_once_frees_the_key_on_an_exception_and_records_those_named(dedup: Dedup) -> None:
    errors = [ConnectionError("try again"), ValueError("never")]

    @dedup.once(key=lambda: "key", fail_on=(ValueError,))
    async def work() -> None:
        raise errors.pop(0)

    with pytest.raises(ConnectionError):
        await work()
    with pytest.raises(ValueError, match="never"):
        await work()
    with pytest.raises(FailedError) as caught:
        await work()
    assert caught.value.error == {"type": "ValueError", "message": "never"}


@on_both_faces
async def test_once_raises_what_is_no_result(dedup: Dedup) -> None:
    @dedup.once(key=lambda body: "key", fingerprint=lambda body: body)
    async def work(body: str) -> str:
        return body

    async with dedup.claim("key", fingerprint="a") as claim:
        with pytest.raises(InProgressError):
            await work("a")
        with pytest.raises(MismatchError):
            await work("b")
        await claim.complete("x")
    assert await work("a") == "x"
