"""Bugs that were found by review, one test each: each failed before its fix."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from fastdedup import BreakerState, ClaimLostError, Dedup, LocalLRU, Outcome, UnavailableError, UsageError
from fastdedup.kernel.operations import Op, Reply
from fastdedup.kernel.verbs import Verb
from fastdedup.stores.memory import MemoryStore

from ..stores import Backend
from ..waiting import cancel, in_its_body, wait_until


class Moody(MemoryStore):
    """A memory store that can be told to lose replies, to hang, or to refuse its subscription."""

    def __init__(self) -> None:
        super().__init__()
        self.loses: set[Verb] = set()
        self.hangs = False
        self.deaf = False

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        if self.hangs:
            await asyncio.Event().wait()
        replies = await super().execute(verb, ops)
        if verb in self.loses:
            raise UnavailableError("the reply was lost")
        return replies

    async def listen(self, on_freed: Callable[[bytes | None], None]) -> None:
        if self.deaf:
            raise UnavailableError("the channel is not for this user")
        await super().listen(on_freed)


@pytest.mark.parametrize("owner", ["1", "x" * 63, "ü"])
async def test_an_owner_may_be_as_short_and_as_long_as_it_is_said(backend: Backend, owner: str) -> None:
    """One byte made the record shorter than any that Redis's scripts took for a record."""
    async with backend.make() as dedup:
        claim = await dedup.claim("key", owner=owner)
        await claim.renew()
        assert (await dedup.claim("key")).outcome is Outcome.IN_PROGRESS
        record = await dedup.get("key")
        assert record is not None
        assert record.owner == owner
        await claim.complete("done")


async def test_a_claim_from_another_loop_leaves_nothing_behind() -> None:
    """It led a key for ever, and closing waited for it."""
    dedup = await Dedup("memory://").open()

    def elsewhere() -> None:
        async def claim() -> None:
            with pytest.raises(UsageError, match="another event loop"):
                await dedup.claim("key")

        asyncio.run(claim())

    await asyncio.to_thread(elsewhere)
    assert (await dedup.claim("key")).acquired
    await dedup.aclose()


async def test_leaving_does_not_mask_the_bodys_error() -> None:
    dedup = await Dedup("memory://").open()

    async def work() -> None:
        async with dedup.claim("key"):
            await dedup.aclose()
            raise ValueError("the body's")

    with pytest.raises(ValueError, match="the body's"):
        await work()


async def test_a_cancelled_body_ends_cancelled_while_closing() -> None:
    """And its claim is freed before the store goes."""
    store = MemoryStore()
    dedup = await Dedup(store).open()
    task = await in_its_body(dedup, "key")
    task.cancel()
    await dedup.aclose()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def test_closing_twice_at_once_is_closing_once() -> None:
    dedup = await Dedup("memory://").open()
    task = asyncio.create_task(dedup.claim("key"))
    await asyncio.sleep(0)
    await asyncio.gather(dedup.aclose(), dedup.aclose())
    assert (await task).acquired


@pytest.mark.parametrize("policy", [None, LocalLRU()])
async def test_a_refused_subscription_is_no_outage_of_claims(policy: Any) -> None:
    """Wakeups look again every so often instead, and nobody is answered from elsewhere."""
    store = Moody()
    store.deaf = True
    async with Dedup(store, on_unavailable=policy) as dedup:
        first = await dedup.claim("key", lease=60)
        waiter = asyncio.create_task(dedup.claim("key", wait=60))
        await asyncio.sleep(0)
        await first.complete("done")
        claim = await waiter
        assert (claim.result, claim.degraded) == ("done", False)


async def test_a_body_does_not_outlive_its_lease_while_the_store_hangs() -> None:
    store = Moody()
    async with Dedup(store, timeout=5.0) as dedup:
        loop = asyncio.get_running_loop()
        started = loop.time()

        async def work() -> None:
            async with dedup.claim("key", lease=0.1, renew=True):
                store.hangs = True
                await asyncio.Event().wait()

        with pytest.raises(ClaimLostError):
            await work()
        assert loop.time() - started < 2, "not the store's deadline on top"
        store.hangs = False
        for batch in list(dedup.gate.connection.engine._under_way):  # type: ignore[union-attr]
            assert batch.task is not None
            batch.task.cancel()


async def test_a_cancellation_from_outside_stays_one() -> None:
    """The body had seen that its claim was lost, and went on."""
    async with Dedup("memory://") as dedup:
        went_on = asyncio.Event()

        async def work() -> None:
            async with dedup.claim("key") as claim:
                await dedup.forget("key")
                with pytest.raises(ClaimLostError):
                    await claim.renew()
                went_on.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await went_on.wait()
        await cancel(task)
        assert task.cancelled()


async def test_renewal_does_not_stop_a_body_whose_completion_is_recorded() -> None:
    """The reply to `complete` was lost; the body is about to try again."""
    store = Moody()
    async with Dedup(store) as dedup, dedup.claim("key", lease=0.06, renew=True) as claim:
        store.loses = {Verb.SETTLE}
        with pytest.raises(UnavailableError):
            await claim.complete("done")
        store.loses = set()
        renewal = claim.settlement.renewal
        assert renewal is not None
        await asyncio.wait([renewal.task], timeout=5)
        assert renewal.task.done()
        await wait_until(lambda: dedup.breaker is BreakerState.CLOSED, description="the store is back")
        await claim.complete("done")
    assert not claim.settlement.stopped_body


async def test_closing_ends_an_opening_without_cancelling_its_caller(backend: Backend) -> None:
    """The attempt to connect was cancelled, and with it the task that opened the gate: a TaskGroup hid that."""
    for turns in (0, 1, 2, 4, 8, 16, 32):
        dedup = backend.make()
        opening = asyncio.create_task(dedup.open())
        for _ in range(turns):
            await asyncio.sleep(0)
        await dedup.aclose()
        with suppress(UsageError):  # unless it was opened first
            await opening
        assert not dedup.is_open
    async with backend.make() as dedup:
        assert (await dedup.claim("key")).acquired
