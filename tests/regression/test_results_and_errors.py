"""Results and errors: kept as long as promised, told apart, and readable in each process and by each codec."""

from __future__ import annotations

import pickle
import sqlite3
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, model_validator

from fastdedup import (
    Claim,
    Dedup,
    DedupError,
    FailedError,
    Outcome,
    Resolution,
    ResultError,
    ResultTooLargeError,
    State,
    Takeover,
)
from fastdedup.codec import UNSTORABLE, JSONCodec
from fastdedup.errors import (
    ClaimLostError,
    ConfigError,
    InProgressError,
    UnavailableError,
    UnknownTransitionError,
)
from fastdedup.kernel.operations import ReadOp
from fastdedup.kernel.records import Stored
from fastdedup.messages import Action, MessageRules, Reason
from fastdedup.messages.blocking import Attempt, BlockingWay
from fastdedup.messages.deliveries import Deliveries
from fastdedup.results.declared import Results
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.sync.sql import Inbox
from fastdedup.testing import FakeStore, inbox_database

from ..codecs import PICKLE, CodecOf
from ..faces import each_face, gate_of, once_of
from ..fixtures import async_fixture
from ..sidecars import Sidecar
from ..stores import Backend

# A codec that encodes a value to `b""` gave the first caller None in place of its result, and duplicates as
# well.


class Raw:
    """A codec for bytes."""

    dumps = loads = staticmethod(bytes)


dedup = async_fixture(lambda backend: backend.make(**SETTINGS))


def test_the_inbox_refuses_no_bytes_of_a_codec() -> None:
    inbox = Inbox("billing", keep=60.0, codec=Raw())
    with inbox_database(inbox) as connection:

        @contextmanager
        def begin() -> Iterator[sqlite3.Connection]:
            with connection:
                yield connection

        @inbox.once(lambda _, result: repr(result), begin=begin)
        def work(transaction: sqlite3.Connection, result: bytes | None) -> bytes | None:
            return result

        once: Any = work
        for _ in range(2):
            assert [once(None), once(b"x")] == [None, b"x"]
            with pytest.raises(ResultError, match="no bytes of a result of type bytes"):
                once(b"")
        assert connection.execute("SELECT count(*) FROM fastdedup_inbox").fetchone() == (2,)


async def test_the_gate_refuses_no_bytes_of_a_codec(redis_url: str) -> None:
    for url in (redis_url, "memory://"):
        async with Dedup(url, namespace="shop", codec=Raw()) as dedup:
            claim = await dedup.claim("empty")
            with pytest.raises(ResultError, match="no bytes of a result of type bytes"):
                await claim.complete(b"")
            await claim.release()
            for result in (None, b"x"):
                await (await dedup.claim(f"{result!r}")).complete(result)
                assert (await dedup.claim(f"{result!r}")).result == result


# Errors went through the codec of the results. With a codec for one type, the first caller of
# `once(fail_on=…)` got ResultError in place of its own error, and duplicates lost that error.


BYTES_ALONE = CodecOf(bytes, bytes)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


async def told(dedup: Dedup, error: Exception) -> Any:
    """Fail with an error for good; return what a duplicate is told."""

    @dedup.once(key=lambda: "order:42", fail_on=(Exception,))
    async def work() -> Any:
        raise error

    with pytest.raises(type(error)):
        await work()
    with pytest.raises(FailedError) as failed:
        await work()
    record = await dedup.get("order:42")
    assert record is not None
    assert record.error == failed.value.error
    return failed.value.error


async def test_each_caller_gets_the_functions_own_error(backend: Backend) -> None:
    async with backend.make(codec=BYTES_ALONE) as dedup:
        assert await told(dedup, RuntimeError("card")) == {"type": "RuntimeError", "message": "card"}


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("x" * 5000), "x" * 125),
        (RuntimeError("a\ud800"), "a\\ud800"),
        (Unspeakable(), "Unspeakable without a text: its own code raised ValueError"),
    ],
    ids=["long", "no UTF-8", "no text"],
)
async def test_each_exception_can_be_recorded(error: Exception, message: str) -> None:
    async with Dedup("memory://", max_result=1000) as dedup:
        assert (await told(dedup, error))["message"] == message


async def test_an_error_that_version_0_1_0_stored_can_be_read(backend: Backend) -> None:
    async with (
        backend.make(codec=PICKLE._replace(stores_errors=True)) as former,
        backend.make(codec=PICKLE) as dedup,
    ):
        if backend.name == "memory":
            dedup = former.scoped(codec=PICKLE)
        await (await former.claim("order:42")).fail({"declined", 7})
        claim = await dedup.claim("order:42")
        assert (claim.outcome, claim.error) == (Outcome.FAILED, {"declined", 7})


# Fault 21: bad JSON in a record was a JSONDecodeError, which no `except DedupError` catches.


CONTENT = b'{"card": 4711'


async def record(dedup: Dedup, key: str, *, succeeded: bool) -> Dedup:
    """Store what JSON cannot read; return a gate that can read it."""
    raw = dedup.scoped(codec=BYTES_ALONE._replace(stores_errors=True))
    claim = await raw.claim(key)
    await (claim.complete(CONTENT) if succeeded else claim.fail(CONTENT))
    return raw


@pytest.mark.parametrize("succeeded", [True, False])
async def test_get_names_the_key_of_what_it_cannot_read(backend: Backend, succeeded: bool) -> None:
    """The record stays, and can be forgotten; neither the message nor what led to it shows the content."""
    async with backend.make() as dedup:
        await record(dedup, "order:7", succeeded=succeeded)
        with pytest.raises(ResultError, match="13 bytes under 'order:7'") as caught:
            await dedup.get("order:7")
        assert "4711" not in "".join(traceback.format_exception(caught.value))
        assert await dedup.forget("order:7")


async def test_an_error_that_cannot_be_read_is_a_dedup_error(backend: Backend) -> None:
    """`claim.error` says so when it is asked for; the outcome itself is known."""
    async with backend.make() as dedup:
        raw = await record(dedup, "order:8", succeeded=False)
        claim = await dedup.claim("order:8")
        assert not claim.acquired
        with pytest.raises(DedupError, match="'order:8'"):
            _ = claim.error
        found = await raw.get("order:8")
        assert found is not None
        assert (found.state, found.error) == (State.FAILED, CONTENT)


# An error that another process raised arrives as what it was: pickle makes it of its message, then sets the
# rest. InProgressError and FailedError had arguments without a default, so Celery stored a DedupError in
# their place.


@pytest.mark.parametrize(
    "error",
    [
        InProgressError("at work", retry_after=7.0),
        FailedError("it failed", error={"code": 7}),
        UnknownTransitionError("who knows", state="paid", version=3),
        ClaimLostError("lost", outage=True),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_pickling(error: DedupError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


# Work that was done, or may have been, was forgotten after `failure_ttl`, and then done again. Its result
# could not be stored, or a resolver did not know whether it was done. A success is remembered for `ttl`.


TTL, OWN_TTL, WINDOW = 600.0, 900.0, 1200.0
UNSTORED = (ResultError, ResultTooLargeError)
Settings = dict[str, Any]
SETTINGS: Settings = {"ttl": TTL, "failure_ttl": 30.0, "max_result": 1000}


async def seconds_kept(dedup: Dedup, claim: Claim) -> float:
    """Return for how long the record of a claim is kept."""
    record = await dedup.gate.run(ReadOp(claim.settlement.held_key[0]))
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
    dedup: Dedup, options: Settings, kept: float
) -> None:
    claim = await left(dedup, **options)
    assert kept - 30 < await seconds_kept(dedup, claim) <= kept
    with pytest.raises(FailedError, match=UNSTORABLE):
        (await dedup.claim("order:42")).replay()


async def test_with_a_ledger_it_is_kept_for_the_window(dedup: Dedup) -> None:
    ledger = dedup.ledger("orders", window=WINDOW, capacity=1000)
    claim = await left(dedup, remember=ledger)
    assert WINDOW <= await seconds_kept(dedup, claim) < WINDOW * 1.02
    assert (await dedup.claim("order:42", remember=ledger)).outcome is Outcome.FAILED


async def test_unknown_is_kept_as_long_as_a_success(dedup: Dedup) -> None:
    async def check(takeover: Takeover) -> Resolution:
        return Resolution.unknown("ask the bank")

    await (await dedup.claim("order:42")).release()
    claim = await dedup.claim("order:42", resolve=check)
    assert claim.error == "ask the bank"
    assert TTL - 30 < await seconds_kept(dedup, claim) <= TTL


async def test_a_swallowed_error_records_no_other_result(dedup: Dedup) -> None:
    """`complete(None)` on leaving told duplicates None, which no call has returned."""
    async with dedup.claim("order:42") as claim:
        with pytest.raises(ResultTooLargeError):
            await claim.complete("x" * 2000)
    assert (await dedup.claim("order:42")).error["message"] == UNSTORABLE


class Panic(BaseException):
    """A library in Rust raises such an error for a mistake of its own."""


class Panicking(BaseModel):
    @model_validator(mode="after")
    def panic(self) -> Panicking:
        raise Panic


@each_face
@pytest.mark.parametrize(
    "error", [UnavailableError("x"), ConfigError("x"), ClaimLostError("x"), Panic(), None], ids=repr
)
async def test_no_error_of_a_codec_lets_the_work_run_again(store: FakeStore, face: str, error: Any) -> None:
    """One of this library came through as if the result were storable: the work ran again after the lease.

    A panic is no Exception. Without a codec the validator of the declared type panics.
    """

    def refuse(result: Any) -> bytes:
        raise error

    charges = []

    def charge(order: str) -> Panicking | str:
        charges.append(order)
        return Panicking.model_construct() if error is None else "paid"

    own = {"codec": CodecOf(refuse, bytes)} if error else {}
    async with gate_of(face, store, **own, **SETTINGS) as dedup:
        call = once_of(face, dedup.once(key=lambda order: order), charge)
        with pytest.raises((ResultError, Panic), match=r"^cannot store a result|^$"):
            await call("42")
        store.clock.advance(31.0)
        with pytest.raises(FailedError, match=UNSTORABLE):
            await call("42")
    assert charges == ["42"]


async def test_a_result_that_the_sidecar_refuses_is_kept_too(redis_url: str) -> None:
    """Its limit may be lower than that of its client: the key was free again when the lease ended."""
    with Sidecar(redis_url) as sidecar:
        async with Dedup(sidecar.url, max_result=10**6, timeout=5.0) as dedup:
            with pytest.raises(ResultTooLargeError):
                async with dedup.claim("order:42") as claim:
                    await claim.complete("x" * 300_000)
            assert (await dedup.claim("order:42")).error["message"] == UNSTORABLE


LOOKS: list[tuple[float, Any]] = [(31.0, FailedError), (TTL - 32.0, FailedError), (2.0, UNSTORED)]
"""Seconds until the next call, and its error: after `failure_ttl`, before the end of `ttl`, and after that."""


@pytest.mark.parametrize("result", [Decimal(1), {1, 2}, b"x", float("nan"), {1: "a"}, "x" * 2000], ids=repr)
@each_face
async def test_work_is_done_once_until_its_ttl_is_over(store: FakeStore, face: str, result: Any) -> None:
    charges = []

    def charge(order: str) -> Any:
        charges.append(order)
        return result

    async with gate_of(face, store, **SETTINGS) as dedup:
        call = once_of(face, dedup.once(key=lambda order: order), charge)
        with pytest.raises(UNSTORED):
            await call("42")
        for seconds, error in LOOKS:
            store.clock.advance(seconds)
            with pytest.raises(error):
                await call("42")
        assert len(charges) == 2


# Consumers: a duplicate got None in place of the result


async def lay(decision: Any) -> None:
    """Lay a dead letter nowhere."""


async def test_a_consumers_duplicate_is_told_why_it_gets_no_result(dedup: Dedup) -> None:
    runs = []

    async def handler(message: str) -> Any:
        runs.append(message)
        return {1, 2}

    deliveries = Deliveries(MessageRules("c", str, keep_result=True), dedup)
    first = await deliveries.handle("42", handler, lay)
    assert (first.reason, first.result) == (Reason.FIRST, {1, 2})
    for again in (False, True):  # also where somebody sends it again from the dead letters
        twin = await deliveries.handle("42", handler, lay, again=again)
        assert (twin.action, twin.reason) == (Action.ACK, Reason.DUPLICATE)
        assert UNSTORABLE in str(twin.error)
    assert runs == ["42"]

    async def panicking(message: str) -> Panicking:
        return Panicking.model_construct()

    rules = MessageRules("d", str, keep_result=True, results=Results(panicking, JSONCodec()))
    deliveries = Deliveries(rules, dedup)
    with pytest.raises(Panic):
        await deliveries.handle("42", panicking, lay)
    assert UNSTORABLE in str((await deliveries.handle("42", panicking, lay)).error)


async def test_a_message_of_unknown_fate_is_kept_as_long_as_a_success(dedup: Dedup) -> None:
    async def check(takeover: Takeover) -> Resolution:
        return Resolution.unknown()

    async def handler(message: str) -> None:
        raise AssertionError

    deliveries = Deliveries(MessageRules("c", str), dedup, resolve=check)
    await deliveries.handle("42", handler, lay, failed=1)
    assert await seconds_kept(dedup, await dedup.claim(MessageRules("c", str).gate_key("42"))) > TTL - 30


def interrupt(result: Any) -> Any:
    raise KeyboardInterrupt


def panic(result: Any) -> Any:
    raise Panic


def test_a_task_is_kept_as_long_as_a_success(store: FakeStore) -> None:
    with (
        SyncDedup(store, **SETTINGS) as dedup,
        SyncDedup(store, codec=CodecOf(panic, bytes), **SETTINGS) as other,
    ):
        way = BlockingWay(MessageRules("task", str, keep_result=True), dedup)
        attempt = way.begin("42")
        assert isinstance(attempt, Attempt)
        attempt.succeed({1, 2})
        interrupted = way.begin("44")
        assert isinstance(interrupted, Attempt)
        with pytest.raises(KeyboardInterrupt):
            interrupted.succeed(1, interrupt)
        panicked = BlockingWay(way.rules, other).begin("45")
        assert isinstance(panicked, Attempt)
        with pytest.raises(Panic):
            panicked.succeed(1)
        lost = BlockingWay(way.rules, dedup, resolve=lambda takeover: Resolution.unknown())
        lost.begin("43", failed=1)
        store.clock.advance(TTL - 1.0)
        for key in ("42", "43", "44", "45"):
            twin = way.begin(key)
            assert not isinstance(twin, Attempt)
            assert isinstance(twin.error, FailedError)
