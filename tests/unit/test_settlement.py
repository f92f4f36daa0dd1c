"""A claim's life, which integrations steer: its states, and what `abandon` leaves to the end of the guarded work."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import ExitStack, nullcontext, suppress
from typing import Any

import pytest

from fastdedup import (
    Claim,
    ClaimLostError,
    ConfigError,
    Dedup,
    DedupError,
    LocalLRU,
    Resolution,
    ResultError,
    Takeover,
    UnavailableError,
    sync,
)
from fastdedup.core.held_claim import Life
from fastdedup.kernel.operations import Op, Reply, SettleOp
from fastdedup.stores.memory import MemoryStore
from fastdedup.testing import FakeStore, fake_dedup

from ..waiting import acquired, cancel, wait_until


@pytest.fixture
def dedup(store: FakeStore) -> Dedup:
    return fake_dedup(store)


class Noting(MemoryStore):
    """Notes for how many milliseconds it remembers each outcome."""

    def __init__(self) -> None:
        super().__init__()
        self.kept_ms: list[int] = []

    def apply(self, op: Op) -> Reply:
        if isinstance(op, SettleOp):
            self.kept_ms.append(op.keep_ms)
        return super().apply(op)


async def test_no_outcome_is_remembered_for_less_than_its_time() -> None:
    """`failure_ttl` was rounded to the nearest millisecond, all other times up."""
    store = Noting()
    async with Dedup(store, ttl=1.0001, failure_ttl=1.0001) as dedup:
        await (await dedup.claim("success")).complete()
        await (await dedup.claim("failure")).fail()
        await (await dedup.claim("own time")).fail(ttl=1.0001)
    assert store.kept_ms == [1001] * 3


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


@pytest.mark.parametrize("caught_before", [0, 1])
async def test_a_cancellation_by_a_lost_lease_is_taken_back(dedup: Dedup, caught_before: int) -> None:
    """A client library may have swallowed it, before the claim was abandoned: it would end the task's next work.

    One that was caught before the block counted as one from outside, which goes first: no error ended the block.
    """

    async def work() -> None:
        if caught_before:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        async with dedup.claim("key") as claim:
            claim.settlement.lose(outage=False)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.Event().wait()
            if not caught_before:
                claim.settlement.abandon()

    task = asyncio.create_task(work())
    with pytest.raises(ClaimLostError):
        await task
    assert task.cancelling() == caught_before


class FaultyPolicy(LocalLRU):
    """The user's own, which fails whenever it is asked."""

    def answer(self, op: Op, error: Exception) -> Reply:
        raise RuntimeError("the policy's own")


@pytest.mark.parametrize("unstorable", [False, True])
async def test_the_bodys_error_goes_before_that_of_a_policy(store: FakeStore, unstorable: bool) -> None:
    """The caller, which may retry by the kind of error, got the policy's."""

    async def work(dedup: Dedup, outage: ExitStack) -> None:
        async with dedup.claim("key") as claim:
            if unstorable:
                with suppress(ResultError):
                    await claim.complete(object())
            outage.enter_context(store.outage("refused"))
            raise KeyError("the body's own")

    async with Dedup(store, on_unavailable=FaultyPolicy()) as dedup:
        with ExitStack() as outage, pytest.raises(KeyError):
            await work(dedup, outage)
        if not unstorable:
            assert (await dedup.claim("key", wait=5.0)).acquired, "it is freed as the store answers again"


def test_a_synchronous_checks_error_goes_before_that_of_a_policy(store: FakeStore) -> None:
    def check(takeover: Takeover) -> Resolution:
        outage.enter_context(store.outage("refused"))
        raise KeyError("the check's own")

    with sync.Dedup(store, on_unavailable=FaultyPolicy()) as dedup:
        dedup.claim("key").release()
        with ExitStack() as outage, pytest.raises(KeyError):
            dedup.claim("key", resolve=check)


@pytest.mark.parametrize("after", [-1.0, float("nan"), None, "soon"])
async def test_a_key_is_not_freed_after_what_is_no_time(dedup: Dedup, after: Any) -> None:
    claim = await dedup.claim("key")
    with pytest.raises(ConfigError, match="after must be"):
        await claim.settlement.free(after=after)
    assert not (await dedup.claim("key")).acquired


async def test_what_cannot_be_stored_is_recorded_as_such(dedup: Dedup) -> None:
    """`instead` is asked for what may be stored in its place; without an answer, a failure says that it cannot be."""
    errors: list[str] = []
    smaller = iter([{"kept": "a part"}, None])

    def instead(error: DedupError) -> Any:
        errors.append(type(error).__name__)
        return next(smaller)

    for key in ("part", "nothing"):
        assert await (await dedup.claim(key)).settlement.record(object(), instead=instead)
    part, nothing = await dedup.claim("part"), await dedup.claim("nothing")
    assert errors == ["ResultError"] * 2
    assert (part.outcome, part.result) == ("succeeded", {"kept": "a part"})
    assert (nothing.outcome, nothing.error["type"]) == ("failed", "ResultError")


@pytest.mark.parametrize("done", [True, False])
async def test_a_failure_is_remembered_as_long_as_a_success_if_the_work_is_done(
    dedup: Dedup, done: bool
) -> None:
    await (await dedup.claim("key")).settlement.record("no", succeeded=False, done=done)
    record = await dedup.get("key")
    settings = dedup.settings
    assert record is not None
    assert record.ttl == (settings.ttl if done else settings.failure_ttl)


@pytest.mark.parametrize("how", ["its time is over", "its caller is cancelled"])
async def test_recording_goes_on_alone(dedup: Dedup, store: FakeStore, how: str) -> None:
    claim = await dedup.claim("key")
    line = ("results of a test", "%s: %s")
    with store.outage("refused"):
        if how == "its time is over":
            assert not await claim.settlement.record(1, within=0.01, alone=line)
        else:
            recording = asyncio.create_task(claim.settlement.record(1, alone=line))
            await asyncio.sleep(0)
            await cancel(recording)
        assert claim.settlement.state is Life.RECORDING
    await wait_until(lambda: claim.settlement.state is Life.SETTLED, description="it is recorded")
    assert (await dedup.claim("key")).result == 1


async def test_what_goes_on_alone_in_vain_is_logged(dedup: Dedup, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[object, ...]] = []
    claim, store = await dedup.claim("key", lease=0.05), dedup.gate.connection.store
    monkeypatch.setattr(type(claim.settlement), "warn", lambda _, *line: told.append(line))
    with store.outage("refused"):  # type: ignore[attr-defined]
        assert not await claim.settlement.record(1, within=0.0, alone=("results of a test", "%s: %s"))
        await wait_until(lambda: told, description="it is logged")
    ((kind, text, error),) = told
    assert (kind, text, type(error)) == ("results of a test", "%s: %s", UnavailableError)


@pytest.mark.parametrize("fault", ["no answer", "another owner", "that cannot be stored"])
async def test_a_result_that_is_kept_elsewhere_brings_no_error(
    dedup: Dedup, store: FakeStore, fault: str
) -> None:
    """It is left to its lease; what cannot be stored frees the key, so that the other place answers."""
    claim = await dedup.claim("key")
    if fault == "another owner":
        await dedup.forget("key")
        assert (await dedup.claim("key")).acquired
    with store.outage("refused") if fault == "no answer" else nullcontext():
        await claim.settlement.mirror(object() if fault == "that cannot be stored" else 1, within=0.0)
    freed = fault == "that cannot be stored"
    assert (await dedup.claim("key")).acquired is freed
    assert (
        claim.settlement.state
        is {
            "no answer": Life.ABANDONED,
            "another owner": Life.LOST,
            "that cannot be stored": Life.SETTLED,
        }[fault]
    )


async def test_freeing_says_what_failed(dedup: Dedup) -> None:
    claim = await dedup.claim("key")
    await dedup.forget("key")
    assert isinstance(await claim.settlement.free(), ClaimLostError)


async def test_a_key_is_free_in_time_although_its_caller_is_cancelled(dedup: Dedup, store: FakeStore) -> None:
    claim = await dedup.claim("key", lease=600.0)
    with store.outage("frozen"):
        freeing = asyncio.create_task(claim.settlement.free(after=0.05))
        await asyncio.sleep(0)
        await cancel(freeing)
    await acquired(dedup, "key")
    await dedup.aclose()


@pytest.mark.parametrize("name", ["complete", "fail", "release", "renew", "touch"])
def test_frameworks_see_that_it_is_to_be_awaited(name: str) -> None:
    """Starlette's BackgroundTask runs any other function in a thread, and drops what it returns."""
    assert inspect.iscoroutinefunction(getattr(Claim, name))
