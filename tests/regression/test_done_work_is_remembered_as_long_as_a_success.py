"""Work that was done, or may have been, was forgotten after `failure_ttl`, and then done again.

Its result could not be stored, or a resolver did not know whether it was done. A success is remembered for `ttl`.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from fastdedup import (
    Claim,
    Dedup,
    FailedError,
    Outcome,
    Resolution,
    ResultError,
    ResultTooLargeError,
    Takeover,
)
from fastdedup.codec import UNSTORABLE
from fastdedup.messages import Action, MessageRules, Reason
from fastdedup.messages.blocking import Attempt, BlockingWay
from fastdedup.messages.deliveries import Deliveries
from fastdedup.protocol.operations import ReadOp, Stored
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.testing import FakeStore

from ..sidecars import Sidecar
from ..stores import Backend

TTL, OWN_TTL, WINDOW = 600.0, 900.0, 1200.0
UNSTORED = (ResultError, ResultTooLargeError)
Settings = dict[str, Any]
SETTINGS: Settings = {"ttl": TTL, "failure_ttl": 30.0, "max_result": 1000}


async def seconds_kept(dedup: Dedup, claim: Claim) -> float:
    """Return for how long the record of a claim is kept."""
    record = await dedup._namespace.ask.run(ReadOp(claim._hold[0]))
    assert isinstance(record, Stored)
    return record.ttl_ms / 1000


async def left(dedup: Dedup, **options: Any) -> Claim:
    """Leave a result behind that cannot be stored; return the claim."""
    call = dedup.claim("order:42", **options)
    with pytest.raises(UNSTORED):
        async with call as claim:
            await claim.complete("x" * 2000)
    return claim


@pytest.mark.parametrize(("options", "kept"), [({}, TTL), ({"ttl": OWN_TTL}, OWN_TTL)])
async def test_a_result_that_cannot_be_stored_is_kept_for_its_ttl(
    backend: Backend, options: Settings, kept: float
) -> None:
    async with backend.make(**SETTINGS) as dedup:
        claim = await left(dedup, **options)
        assert kept - 30 < await seconds_kept(dedup, claim) <= kept
        with pytest.raises(FailedError, match=UNSTORABLE):
            (await dedup.claim("order:42")).replay()


async def test_with_a_ledger_it_is_kept_for_the_window(backend: Backend) -> None:
    async with backend.make(**SETTINGS) as dedup:
        ledger = dedup.ledger("orders", window=WINDOW, capacity=1000)
        claim = await left(dedup, remember=ledger)
        assert WINDOW <= await seconds_kept(dedup, claim) < WINDOW * 1.02
        assert (await dedup.claim("order:42", remember=ledger)).outcome is Outcome.FAILED


async def test_unknown_is_kept_as_long_as_a_success(backend: Backend) -> None:
    async def check(takeover: Takeover) -> Resolution:
        return Resolution.unknown("ask the bank")

    async with backend.make(**SETTINGS) as dedup:
        await (await dedup.claim("order:42")).release()
        claim = await dedup.claim("order:42", resolve=check)
        assert claim.error == "ask the bank"
        assert TTL - 30 < await seconds_kept(dedup, claim) <= TTL


async def test_a_failure_is_still_kept_for_failure_ttl(backend: Backend) -> None:
    async with backend.make(**SETTINGS) as dedup:
        claim = await dedup.claim("order:42")
        await claim.fail("declined")
        assert await seconds_kept(dedup, claim) <= 30.0


async def test_a_swallowed_error_records_no_other_result(backend: Backend) -> None:
    """`complete(None)` on leaving told duplicates None, which no call has returned."""
    async with backend.make(**SETTINGS) as dedup:
        async with dedup.claim("order:42") as claim:
            with pytest.raises(ResultTooLargeError):
                await claim.complete("x" * 2000)
        assert (await dedup.claim("order:42")).error["message"] == UNSTORABLE


async def test_a_result_that_the_sidecar_refuses_is_kept_too(redis_url: str) -> None:
    """Its limit may be lower than that of its client: the key was free again when the lease ended."""
    sidecar = Sidecar(redis_url).start()
    try:
        async with Dedup(sidecar.url, max_result=10**6, timeout=5.0) as dedup:
            with pytest.raises(ResultTooLargeError):
                async with dedup.claim("order:42") as claim:
                    await claim.complete("x" * 300_000)
            assert (await dedup.claim("order:42")).error["message"] == UNSTORABLE
    finally:
        sidecar.stop()


RESULTS = pytest.mark.parametrize(
    "result", [Decimal(1), {1, 2}, b"x", float("nan"), 2**70, {1: "a"}, "x" * 2000], ids=repr
)


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


LOOKS: list[tuple[float, Any]] = [(31.0, FailedError), (TTL - 32.0, FailedError), (2.0, UNSTORED)]
"""Seconds until the next call, and its error: after `failure_ttl`, before the end of `ttl`, and after that."""


@RESULTS
def test_synchronous_work_is_done_once_until_its_ttl_is_over(store: FakeStore, result: Any) -> None:
    charges = []
    with SyncDedup(store, **SETTINGS) as dedup:

        @dedup.once(key=lambda order: order)
        def charge(order: str) -> Any:
            charges.append(order)
            return result

        with pytest.raises(UNSTORED):
            charge("42")
        for seconds, error in LOOKS:
            store.clock.advance(seconds)
            with pytest.raises(error):
                charge("42")
        assert len(charges) == 2


@RESULTS
async def test_asynchronous_work_is_done_once_until_its_ttl_is_over(store: FakeStore, result: Any) -> None:
    charges = []
    async with Dedup(store, **SETTINGS) as dedup:

        @dedup.once(key=lambda order: order)
        async def charge(order: str) -> Any:
            charges.append(order)
            return result

        with pytest.raises(UNSTORED):
            await charge("42")
        for seconds, error in LOOKS:
            store.clock.advance(seconds)
            with pytest.raises(error):
                await charge("42")
        assert len(charges) == 2


# Consumers: a duplicate got None in place of the result


async def lay(decision: Any) -> None:
    """Lay a dead letter nowhere."""


async def test_a_consumers_duplicate_is_told_why_it_gets_no_result(backend: Backend) -> None:
    runs = []

    async def handler(message: str) -> Any:
        runs.append(message)
        return {1, 2}

    async with backend.make(**SETTINGS) as dedup:
        deliveries = Deliveries(MessageRules("c", str, keep_result=True), dedup)
        first = await deliveries.handle("42", handler, lay)
        assert (first.reason, first.result) == (Reason.FIRST, {1, 2})
        for again in (False, True):  # also where somebody sends it again from the dead letters
            twin = await deliveries.handle("42", handler, lay, again=again)
            assert (twin.action, twin.reason) == (Action.ACK, Reason.DUPLICATE)
            assert UNSTORABLE in str(twin.error)
        assert runs == ["42"]


async def test_a_message_of_unknown_fate_is_kept_as_long_as_a_success(backend: Backend) -> None:
    async def check(takeover: Takeover) -> Resolution:
        return Resolution.unknown()

    async def handler(message: str) -> None:
        raise AssertionError

    async with backend.make(**SETTINGS) as dedup:
        deliveries = Deliveries(MessageRules("c", str), dedup, resolve=check)
        await deliveries.handle("42", handler, lay, failed=1)
        assert await seconds_kept(dedup, await dedup.claim(MessageRules("c", str).gate_key("42"))) > TTL - 30


def test_a_task_is_kept_as_long_as_a_success(store: FakeStore) -> None:
    with SyncDedup(store, **SETTINGS) as dedup:
        way = BlockingWay(MessageRules("task", str, keep_result=True), dedup)
        attempt = way.begin("42")
        assert isinstance(attempt, Attempt)
        attempt.succeed({1, 2})
        lost = BlockingWay(way.rules, dedup, resolve=lambda takeover: Resolution.unknown())
        lost.begin("43", failed=1)
        store.clock.advance(TTL - 1.0)
        for key in ("42", "43"):
            twin = way.begin(key)
            assert not isinstance(twin, Attempt)
            assert isinstance(twin.error, FailedError)
