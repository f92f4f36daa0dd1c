"""The guard in the engine: while the breaker is open nothing but probes reaches the store, and nobody waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from fastdedup import BreakerState, Dedup, LocalLRU, Reject, UnavailableError
from fastdedup.events import BreakerClosed, BreakerOpened, Event
from fastdedup.kernel.breaker import FAILURES, FIRST_PAUSE, LONGEST_PAUSE
from fastdedup.kernel.operations import Op, Reply
from fastdedup.kernel.verbs import Verb
from fastdedup.stores.memory import MemoryStore

from ..heard import HeardGate
from ..virtual import EPOCH, pass_time, virtual

TIMEOUT = 0.25


class Scripted(MemoryStore):
    """Refuses while it is down, answers nothing while it hangs; counts what it is asked."""

    name = "scripted:1"

    def __init__(self) -> None:
        super().__init__(clock=lambda: EPOCH + asyncio.get_running_loop().time())
        self.down = False
        self.hangs = False
        self.asked: list[Verb] = []

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        self.asked.append(verb)
        await self._meet()
        return await super().execute(verb, ops)

    async def _meet(self) -> None:
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.down:
            raise UnavailableError("it is down")


class Probed(Scripted):
    """Has a probe of its own, that may meet something else."""

    def __init__(self) -> None:
        super().__init__()
        self.probes = 0
        self.mistake: Exception | None = None

    async def probe(self, wire: bytes) -> None:
        self.probes += 1
        if self.mistake is not None:
            raise self.mistake
        await self._meet()


class Gate(HeardGate):
    """A gate on a scripted store, and what it reported."""

    def __init__(self, store: Scripted) -> None:
        super().__init__(store, timeout=TIMEOUT, on_unavailable=Reject(retry_after=7.5))
        self.store = store

    async def break_down(self) -> None:
        self.store.down = True
        while self.dedup.breaker is BreakerState.CLOSED:
            with pytest.raises(UnavailableError):
                await self.dedup.claim("k")
        self.store.asked.clear()


def seconds() -> float:
    return asyncio.get_running_loop().time()


VERBS: dict[str, Callable[[Dedup], object]] = {
    "claim": lambda dedup: dedup.claim("k"),
    "named claim": lambda dedup: dedup.claim("k", owner="ann"),
    "claims": lambda dedup: dedup.claim_many(["a", "b"]),
    "get": lambda dedup: dedup.get("k"),
    "forget": lambda dedup: dedup.forget("k"),
    "issue": lambda dedup: dedup.tokens.issue(),
    "consume": lambda dedup: dedup.tokens.consume("t"),
    "redeem": lambda dedup: dedup.tokens.redeem("t"),
    "transition": lambda dedup: dedup.machine("o", initial="a", transitions={"a": ()}).transition(
        "1", to="a"
    ),
    "state": lambda dedup: dedup.machine("o", initial="a", transitions={"a": ()}).get("1"),
    "lock": lambda dedup: dedup.lock("k").__aenter__(),
}


@virtual
async def test_it_opens_after_some_failed_batches_and_says_so() -> None:
    async with Gate(Scripted()) as gate:
        await gate.break_down()
        assert gate.dedup.breaker is BreakerState.OPEN
        assert gate.of(BreakerOpened) == [BreakerOpened("scripted:1", "it is down")]


@pytest.mark.parametrize("verb", VERBS)
@virtual
async def test_while_it_is_open_every_verb_is_refused_at_once_and_nothing_is_sent(verb: str) -> None:
    async with Gate(Probed()) as gate:
        await gate.break_down()
        began = seconds()
        with pytest.raises(UnavailableError, match=r"it is down \(breaker open") as caught:
            await VERBS[verb](gate.dedup)  # type: ignore[misc]
        assert caught.value.retry_after == 7.5
        assert seconds() == began
        assert gate.store.asked == []


@virtual
async def test_while_it_is_open_a_claim_that_waits_sends_nothing() -> None:
    async with Gate(Probed()) as gate:
        await gate.break_down()
        began = seconds()
        with pytest.raises(UnavailableError, match=r"it is down \(breaker open"):
            await gate.dedup.claim("k", wait=60.0)
        assert seconds() - began == pytest.approx(60.001)  # uvloop counts whole milliseconds, so it adds one
        assert gate.store.asked == []


@virtual
async def test_while_it_is_open_settling_asks_nothing_either() -> None:
    """It is tried until the lease ends, without knocking at the store."""
    async with Gate(Probed()) as gate:
        claim = await gate.dedup.claim("held", lease=2.0)
        await gate.break_down()
        with pytest.raises(UnavailableError):
            await claim.complete()
        assert seconds() >= 2.0
        assert gate.store.asked == []


@virtual
async def test_only_probes_are_sent_and_ever_more_rarely() -> None:
    async with Gate(Probed()) as gate:
        await gate.break_down()
        await pass_time(1.0)
        store = gate.store
        assert isinstance(store, Probed)
        early, store.probes = store.probes, 0
        await pass_time(10.0)
        assert 3 <= early <= 1.0 / (0.5 * FIRST_PAUSE)
        assert 10.0 / LONGEST_PAUSE - 1 <= store.probes <= 10.0 / (0.5 * LONGEST_PAUSE) + 1
        assert store.asked == []


@virtual
async def test_a_store_without_a_probe_is_asked_by_a_read() -> None:
    async with Gate(Scripted()) as gate:
        await gate.break_down()
        await pass_time(5.0)
        assert set(gate.store.asked) == {Verb.READ}
        gate.store.down = False
        await pass_time(LONGEST_PAUSE)
        assert (await gate.dedup.claim("k")).acquired


@virtual
async def test_it_closes_soon_after_the_store_is_back_and_says_how_long_it_was_open() -> None:
    async with Gate(Probed()) as gate:
        await gate.break_down()
        began = seconds()
        await pass_time(7.0)
        gate.store.down = False
        await pass_time(LONGEST_PAUSE)
        assert gate.dedup.breaker is BreakerState.CLOSED
        (closed,) = gate.of(BreakerClosed)
        assert isinstance(closed, BreakerClosed)
        assert closed.store == "scripted:1"
        assert 7.0 <= closed.lasted <= seconds() - began
        assert (await gate.dedup.claim("k")).acquired


@virtual
async def test_what_waits_for_a_batch_when_it_opens_is_refused_at_once() -> None:
    """Five thousand callers behind a store that hangs wait one deadline, not one each."""
    async with Gate(Probed()) as gate:
        gate.store.hangs = True
        answers = await asyncio.gather(
            *(gate.dedup.claim(str(n)) for n in range(5000)), return_exceptions=True
        )
        assert {type(answer) for answer in answers} == {UnavailableError}
        assert seconds() <= TIMEOUT + 0.1
        assert gate.dedup.breaker is BreakerState.OPEN
        assert len(gate.store.asked) <= 2 * FAILURES


@virtual
async def test_a_batch_that_was_under_way_when_it_opened_is_still_answered() -> None:
    """Its caller gets the answer, but the breaker stays open: it says nothing of the store now."""
    store = Slow()
    async with Gate(store) as gate:
        first = asyncio.ensure_future(gate.dedup.claim("under way"))
        await pass_time(0.01)
        await gate.break_down()
        store.let_go.set_result(None)
        assert (await first).acquired
        assert gate.dedup.breaker is BreakerState.OPEN


class Slow(Scripted):
    """Its first batch takes as long as the test says."""

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        if not self.asked and verb is Verb.CLAIM:
            self.asked.append(verb)
            self.let_go: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            await self.let_go
            return await MemoryStore.execute(self, verb, ops)
        return await super().execute(verb, ops)


@virtual
async def test_a_probe_that_hangs_is_cut_at_the_timeout() -> None:
    async with Gate(Probed()) as gate:
        await gate.break_down()
        gate.store.hangs = True
        await pass_time(1.0)
        store = gate.store
        assert isinstance(store, Probed)
        assert store.probes >= 2
        with pytest.raises(UnavailableError, match=r"no answer within 0\.25 s"):
            await gate.dedup.claim("k")
        gate.store.down = gate.store.hangs = False
        await pass_time(TIMEOUT + LONGEST_PAUSE)
        assert gate.dedup.breaker is BreakerState.CLOSED


@virtual
async def test_a_probe_that_meets_a_mistake_closes_it() -> None:
    """The store answers; who asks next shall meet the mistake, not an outage that no waiting ends."""
    store = Probed()
    async with Gate(store) as gate:
        await gate.break_down()
        store.mistake, store.down = TypeError("a bug in the store"), False
        await pass_time(LONGEST_PAUSE)
        assert gate.dedup.breaker is BreakerState.CLOSED


@virtual
async def test_a_store_that_refuses_the_read_of_a_probe_alone_is_not_back() -> None:
    """A reply may be an error of one operation's own: here it is the probe's."""

    class Refusing(Scripted):
        async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
            if self.down and verb is Verb.READ:
                return [UnavailableError("not yet")]
            return await super().execute(verb, ops)

    async with Gate(Refusing()) as gate:
        await gate.break_down()
        await pass_time(3.0)
        assert gate.dedup.breaker is BreakerState.OPEN


@virtual
async def test_what_is_refused_alone_does_not_open_it() -> None:
    """A full memory store says no to new keys, and goes on answering for the others."""
    store = MemoryStore(maxsize=1, clock=lambda: EPOCH)
    async with Dedup(store) as dedup:
        await dedup.claim("fits")
        for number in range(20):
            with pytest.raises(UnavailableError, match="full"):
                await dedup.claim(str(number))
        assert dedup.breaker is BreakerState.CLOSED
        assert not (await dedup.claim("fits")).acquired


@virtual
async def test_a_programming_error_does_not_open_it() -> None:
    class Buggy(MemoryStore):
        async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
            raise TypeError("a bug")

    async with Dedup(Buggy()) as dedup:
        for _ in range(20):
            with pytest.raises(TypeError):
                await dedup.claim("k")
        assert dedup.breaker is BreakerState.CLOSED


@pytest.mark.parametrize("hangs", [False, True])
@virtual
async def test_closing_while_it_is_open_leaves_no_task(hangs: bool) -> None:
    """Also in the middle of a probe; that is checked after each test of this kind."""
    gate = Gate(Probed())
    async with gate:
        await gate.break_down()
        gate.store.hangs = hangs
        await pass_time(0.2)
    assert gate.dedup.breaker is BreakerState.CLOSED, "nothing is known to its disadvantage"


@virtual
async def test_a_store_that_flaps_opens_and_closes_it_each_time_and_every_change_is_told() -> None:
    async with Gate(Probed()) as gate:
        for _ in range(20):
            await gate.break_down()
            gate.store.down = False
            await pass_time(2 * FIRST_PAUSE)
            assert gate.dedup.breaker is BreakerState.CLOSED
            assert not (await gate.dedup.claim("k")).degraded
        kinds = [type(event) for event in gate.events if isinstance(event, BreakerOpened | BreakerClosed)]
        assert kinds == [BreakerOpened, BreakerClosed] * 20


@pytest.mark.parametrize("policy", [Reject(), LocalLRU()])
@virtual
async def test_a_callback_that_raises_at_every_event_changes_nothing(policy: Reject | LocalLRU) -> None:
    """Neither the breaker nor what probes nor what brings the journal home stops at it."""

    def fails(event: Event) -> None:
        raise RuntimeError("a bug of the user's")

    store = Probed()
    async with Dedup(store, on_unavailable=policy, on_event=fails) as dedup:
        store.down = True
        for number in range(5):
            try:
                await dedup.claim(str(number))
            except UnavailableError:
                assert isinstance(policy, Reject)
        assert dedup.breaker is BreakerState.OPEN
        store.down = False
        await pass_time(1.0)
        assert dedup.breaker is BreakerState.CLOSED
        assert isinstance(policy, Reject) or policy.lines == 0
