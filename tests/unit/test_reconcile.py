"""The way home: when it is tried, what hinders it, and what closing makes of it. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from fastdedup import ConfigError, LocalLRU, Outcome, UnavailableError
from fastdedup.events import Event, Replayed, Unreplayed
from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import Op, Reply
from fastdedup.kernel.verbs import Verb
from fastdedup.stores.memory import MemoryStore

from ..heard import HeardGate
from ..virtual import Link, pass_time, virtual, virtual_loop
from ..waiting import wait_until


class Way(Link):
    """To a store of its own; counts what goes over it, and may refuse to take records in."""

    def __init__(self) -> None:
        loop = virtual_loop()
        self.store = MemoryStore(clock=loop.clock)
        super().__init__(self.store)
        self.batches: list[tuple[Verb, int]] = []
        self.poison: Exception | None = None
        self.poisoned = b""
        self.answers_each = False
        self.is_stale = False

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        self.batches.append((verb, len(ops)))
        if verb is Verb.FIRST and self.is_stale:
            return [Code.STALE for _ in ops]
        if verb is Verb.ADOPT and self.poison is not None:
            if isinstance(self.poison, UnavailableError) or self.answers_each:
                return [self._one(op) for op in ops]
            if not self.poisoned or any(op.wire == self.poisoned for op in ops):
                raise self.poison
        return await super().execute(verb, ops)

    def _one(self, op: Op) -> Reply:
        if not self.poisoned or op.wire == self.poisoned:
            return cast(Reply, self.poison)
        return self.store.apply(op)

    def adoptions(self) -> list[int]:
        return [count for verb, count in self.batches if verb is Verb.ADOPT]


class Gate(HeardGate):
    """A gate on such a way."""

    def __init__(self, maxsize: int = 10_000) -> None:
        loop = virtual_loop()
        self.way = Way()
        self.policy = LocalLRU(maxsize, clock=loop.clock)
        super().__init__(self.way, namespace="t", on_unavailable=self.policy, known_duplicates=0)

    async def outage(self, keys: int) -> None:
        self.way.down = True
        for number in range(keys):
            claim = await self.dedup.claim(f"k{number}")
            await claim.complete(number)


@pytest.mark.no_cover
@virtual
async def test_it_all_comes_home_soon_after_the_store_is_back_in_batches_and_is_told_once() -> None:
    async with Gate() as gate:
        await gate.outage(600)
        await pass_time(60.0)
        assert gate.policy.lines == 600
        gate.way.down = False
        gate.way.batches.clear()
        await pass_time(1.0)
        assert gate.policy.lines == 0
        assert sum(gate.way.adoptions()) == 600
        assert len(gate.way.adoptions()) <= 3
        assert gate.of(Replayed) == [Replayed(600, 0)]


@virtual
async def test_while_the_breaker_is_open_nothing_is_sent_home() -> None:
    async with Gate() as gate:
        await gate.outage(100)
        await pass_time(1.0)
        gate.way.batches.clear()
        await pass_time(60.0)
        assert gate.way.adoptions() == []


@virtual
async def test_in_a_long_outage_lines_that_expire_take_no_place() -> None:
    """Ten thousand keys, a second's memory each: what comes home is what is still worth it."""
    async with Gate(maxsize=1000) as gate:
        gate.way.down = True
        short = gate.dedup.scoped("short", ttl=0.5, lease=0.5)
        for number in range(2000):
            await (await short.claim(f"k{number}")).complete()
            await pass_time(0.01)
        assert gate.policy.lines <= 1200
        await pass_time(2.0)
        gate.way.down = False
        await pass_time(1.0)
        assert gate.policy.lines == 0
        assert gate.of(Replayed) == gate.of(Unreplayed) == []


@virtual
async def test_a_record_that_the_store_refuses_alone_keeps_none_of_the_others_out() -> None:
    """A store that is full, say: that one is tried again, and is home when there is room."""
    async with Gate() as gate:
        await gate.outage(600)
        gate.way.poison, gate.way.poisoned = UnavailableError("no room"), b"t:=k7"
        gate.way.down = False
        await pass_time(5.0)
        assert gate.policy.lines == 1
        known = await gate.dedup.claim("k7")
        assert (known.result, known.degraded) == (7, True)
        gate.way.poison = None
        await pass_time(1.0)
        assert gate.policy.lines == 0
        assert (await gate.dedup.claim("k7")).degraded is False


@virtual
async def test_an_error_about_one_record_keeps_none_of_the_others_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the task of them all, and what was completed in the outage was acquired again."""
    async with Gate() as gate:
        await gate.outage(600)
        adopted, faults = gate.policy.adopted, ["k7"] * 3

        def faulty(op: Any, reply: Any) -> Any:
            if faults and op.wire == b"t:=k7":
                faults.pop()
                raise RuntimeError("a fault of ours")
            return adopted(op, reply)

        monkeypatch.setattr(gate.policy, "adopted", faulty)
        gate.way.down = False
        await pass_time(5.0)
        assert faults == []
        assert gate.policy.lines == 0
        assert gate.of(Replayed) == [Replayed(600, 0)]
        assert ["adopt" in record.message for record in caplog.records if record.exc_info] == [True]


@virtual
async def test_a_store_that_cannot_adopt_is_said_once_and_nothing_is_given_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One of the user's own, say, that does not know the verb: no outage, and no reason to forget."""
    async with Gate() as gate:
        await gate.outage(3)
        gate.way.poison = TypeError("what is adopt?")
        gate.way.down = False
        await pass_time(30.0)
        assert gate.policy.lines == 3
        assert (await gate.dedup.claim("k1")).result == 1
        assert (await gate.dedup.claim("fresh")).degraded is False
    assert [record.exc_info is not None for record in caplog.records if "adopt" in record.message] == [True]
    assert len(gate.of(Unreplayed)) == 3


@virtual
async def test_a_record_that_spoils_its_batch_is_said_and_keeps_none_of_the_others_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A sidecar refuses a whole batch for one number that is out of bounds."""
    async with Gate() as gate:
        await gate.outage(600)
        gate.way.poison, gate.way.poisoned = ConfigError("a number is out of bounds"), b"t:=k7"
        gate.way.down = False
        await wait_until(lambda: gate.policy.lines == 1, description="all others are in the store")
        assert (await gate.dedup.claim("k599")).degraded is False
        assert (await gate.dedup.claim("k7")).result == 7
    assert ["out of bounds" in record.message for record in caplog.records if record.exc_info] == [True]


@pytest.mark.parametrize(("poisoned", "left"), [(b"t:=k7", 1), (b"", 200)])
@virtual
async def test_records_that_are_refused_alone_cost_little(poisoned: bytes, left: int) -> None:
    """A sidecar answers each record of a batch. For ever, each pass sent up to 255 commands without a pause."""
    async with Gate() as gate:
        await gate.outage(200)
        gate.way.poison, gate.way.poisoned = ConfigError("this socket serves mail only"), poisoned
        gate.way.answers_each = True
        gate.way.down = False
        gate.way.batches.clear()
        await pass_time(15.0)
        assert gate.policy.lines == left
        assert len(gate.way.adoptions()) < 100
        gate.way.poison = None
        await wait_until(lambda: gate.policy.lines == 0, description="all records are home")


@virtual
async def test_a_form_that_is_too_old_at_once_is_read_after_pauses() -> None:
    """The clocks of its node and the bucket's may differ by more than a form counts: it was read without end."""
    async with Gate() as gate:
        gate.way.down = True
        ledger = gate.dedup.ledger("orders", window=3600, capacity=1000)
        assert await ledger.first("1")
        gate.way.down, gate.way.is_stale = False, True
        since = asyncio.get_running_loop().time()
        await wait_until(lambda: len(gate.way.batches) > 30, description="it was read again and again")
        assert asyncio.get_running_loop().time() > since + 2
        gate.way.is_stale = False
        await wait_until(lambda: gate.policy.lines == 0, description="the store has the id")
        assert not await ledger.first("1")


@virtual
async def test_closing_keeps_no_record_out_because_another_is_refused() -> None:
    gate = Gate()
    async with gate:
        gate.way.down = True
        claims = await gate.dedup.claim_many(["k0", "k1"])
        await asyncio.gather(*[claim.complete() for claim in claims])
        gate.way.poison, gate.way.poisoned = ConfigError("a number is out of bounds"), b"t:=k0"
        gate.way.down = False
    assert [event.key for event in gate.of(Unreplayed)] == ["k0"]


@virtual
async def test_closing_brings_home_what_it_can() -> None:
    """The store is back, and nobody has noticed yet."""
    gate = Gate()
    async with gate:
        gate.way.down = True
        await (await gate.dedup.claim("k")).complete("v")
        gate.way.down = False
    assert gate.of(Unreplayed) == []
    assert gate.way.store.entry(b"t:=k") is not None


@virtual
async def test_closing_while_the_store_hangs_takes_no_longer_than_the_deadlines_and_reports_each_key() -> (
    None
):
    gate = Gate()
    async with gate:
        await gate.outage(3)
        gate.way.down = False
        gate.way.freeze()
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began <= 1.0
    assert sorted(event.key for event in gate.of(Unreplayed)) == ["k0", "k1", "k2"]  # type: ignore[union-attr]


@virtual
async def test_what_is_settled_while_its_claim_is_on_the_way_home_comes_home_settled() -> None:
    async with Gate() as gate:
        gate.way.down = True
        claim = await gate.dedup.claim("k")
        await pass_time(0.005)  # the first try is over
        gate.way.latency = 0.1
        gate.way.down = False
        await pass_time(0.05)
        assert gate.way.adoptions(), "it is on its way"
        await claim.complete("meanwhile")
        await pass_time(1.0)
        assert gate.policy.lines == 0
        found = await gate.dedup.claim("k")
        assert (found.outcome, found.result, found.degraded) == (Outcome.SUCCEEDED, "meanwhile", False)
        assert gate.of(Replayed) == [Replayed(1, 0)], "one key, however often it was sent"


@virtual
async def test_a_callback_that_asks_the_gate_from_within_an_event_is_served() -> None:
    """It starts a task, as a callback must: what that does is nothing special."""
    async with Gate() as gate:
        tasks = []

        def asks(event: Event) -> None:
            gate.events.append(event)
            tasks.append(asyncio.ensure_future(gate.dedup.claim(f"from event {len(tasks)}")))

        gate.dedup.gate.connections.common.on_event[:] = [asks]
        gate.way.down = True
        await gate.dedup.claim("k")
        gate.way.down = False
        await pass_time(2.0)
        assert gate.policy.lines == 0
        assert all(claim.acquired for claim in await asyncio.gather(*tasks))
