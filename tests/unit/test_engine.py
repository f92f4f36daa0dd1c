"""The engine on a store whose answers the test gives: batches, turns, deadlines, backpressure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fastdedup import Outcome, UnavailableError, UsageError
from fastdedup.kernel.codes import Code
from fastdedup.kernel.engine import Engine
from fastdedup.kernel.operations import ClaimOp, Op, ReadOp, ReleaseOp, Reply, SettleOp, Verdict
from fastdedup.kernel.owners import draw_owner
from fastdedup.kernel.replies import RefusedAlone
from fastdedup.kernel.terms import Mode, terms
from fastdedup.kernel.verbs import Verb
from fastdedup.stores.memory import MemoryStore

from ..idle import IdleTime
from ..virtual import Link, virtual, virtual_loop

TERMS = terms(Mode.CLAIM, 1000, 2000, False)
WAITING = terms(Mode.CLAIM, 1000, 2000, True)


class HeldStore:
    """Keeps each batch until the test lets it go."""

    def __init__(self) -> None:
        self.batches: list[tuple[Verb, list[Op]]] = []
        self.gates: list[asyncio.Event] = []
        self.held = True
        self.error: Exception | None = None

    async def open(self) -> None: ...

    async def aclose(self) -> None: ...

    async def listen(self, on_freed: Callable[[bytes | None], None]) -> None: ...

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        self.batches.append((verb, list(ops)))
        gate = asyncio.Event()
        self.gates.append(gate)
        if self.held:
            await gate.wait()
        if self.error is not None:
            raise self.error
        return [Verdict(Outcome.ACQUIRED, fence=1) if verb is Verb.CLAIM else Code.OK for _ in ops]

    @property
    def sizes(self) -> list[int]:
        return [len(ops) for _, ops in self.batches]

    @property
    def verbs(self) -> list[Verb]:
        return [verb for verb, _ in self.batches]

    def let_go(self, number: int) -> None:
        self.gates[number].set()


@pytest.fixture
def store() -> HeldStore:
    return HeldStore()


def claim(key: str) -> ClaimOp:
    return ClaimOp(key.encode(), TERMS, draw_owner(), None)


def waiting(key: str) -> ClaimOp:
    """Give the claim of a caller that waits: the store is to send it news of the key."""
    return ClaimOp(key.encode(), WAITING, draw_owner(), None)


def settle(key: str, size: int = 0) -> SettleOp:
    return SettleOp(key.encode(), draw_owner(), 0, succeeded=True, keep_ms=1, payload=b"x" * size)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_comes_in_one_turn_goes_out_as_one_batch(store: HeldStore) -> None:
    engine = Engine(store, timeout=5)
    futures = [engine.claim(claim(f"k{n}")) for n in range(10)]
    await turns()
    assert store.sizes == [10]
    store.let_go(0)
    await asyncio.gather(*futures)
    assert engine.pending == 0


async def test_batches_grow_while_others_are_in_flight(store: HeldStore) -> None:
    engine = Engine(store, timeout=5, max_in_flight=2)
    futures = []
    for n in range(10):
        futures.append(engine.claim(claim(f"k{n}")))
        await turns()
    assert store.sizes == [1, 1], "two in flight, the rest waits"
    store.let_go(0)
    await turns()
    assert store.sizes == [1, 1, 8], "and goes as one"
    for number in (1, 2):
        store.let_go(number)
    await asyncio.gather(*futures)


async def test_behind_many_cancelled_claims_the_next_is_sent(store: HeldStore) -> None:
    """More batches of them than Python calls may stand within each other."""
    engine = Engine(store, timeout=5, max_in_flight=1, max_batch=1)
    first = engine.claim(claim("first"))
    await turns()
    cancelled = [engine.claim(claim(f"k{n}")) for n in range(2_000)]
    last = engine.claim(claim("last"))
    for future in cancelled:
        future.cancel()
    store.held = False
    store.let_go(0)
    await asyncio.gather(first, last)
    assert store.sizes == [1, 1]
    assert engine.pending == 0


async def test_settling_goes_before_claims(store: HeldStore) -> None:
    engine = Engine(store, timeout=5, max_in_flight=1, max_batch=2)
    futures = [engine.claim(claim("first"))]
    await turns()
    futures += [engine.claim(claim(f"k{n}")) for n in range(6)]
    futures += [
        engine.submit(settle("s")),
        engine.submit(ReadOp(b"r")),
        engine.submit(ReleaseOp(b"f", b"\0", 0)),
    ]
    store.held = False
    store.let_go(0)
    await asyncio.gather(*futures)
    expected = [Verb.CLAIM, Verb.SETTLE, Verb.RELEASE]
    assert store.verbs[:3] == expected
    assert Verb.READ in store.verbs[3:5], "the others take turns: a read does not wait for all claims"


async def test_a_batch_is_bounded_in_bytes(store: HeldStore) -> None:
    store.held = False
    engine = Engine(store, timeout=5, max_bytes=1000)
    await asyncio.gather(*(engine.submit(settle(f"k{n}", 400)) for n in range(6)))
    assert store.sizes == [3, 3]


async def test_no_answer_within_the_deadline_is_unavailable(store: HeldStore) -> None:
    engine = Engine(store, timeout=0.02, max_in_flight=1, max_batch=1)
    futures = [engine.claim(claim(f"k{n}")) for n in range(3)]
    with IdleTime() as idle:
        answers = await asyncio.gather(*futures, return_exceptions=True)
    assert {type(answer) for answer in answers} == {UnavailableError}
    assert idle.seconds < 1
    assert engine.pending == 0
    assert engine.in_flight == 0
    assert not engine.leaders


async def test_a_loop_blocked_past_the_deadline_grants_a_grace(store: HeldStore) -> None:
    """The reply lay in the socket all the while: it is not thrown away."""
    engine = Engine(store, timeout=0.1)
    future = engine.claim(claim("k"))
    await turns()
    asyncio.get_running_loop().call_soon(store.let_go, 0)
    time.sleep(0.2)  # noqa: ASYNC251 -- what a careless callback does
    reply = await future
    assert isinstance(reply, Verdict)


@pytest.mark.parametrize("blocked", [0.0, 0.1, 0.2, 0.26, 1.0])
@virtual
async def test_a_blocked_loop_takes_no_time_from_what_waits(blocked: float) -> None:
    """10,000 claims in batches of 256, four under way for 20 ms each, take 0.2 s: without the block, and after it."""
    loop = virtual_loop()
    link = Link(MemoryStore(clock=loop.clock))
    link.latency = 0.01
    engine = Engine(link, timeout=0.25)
    futures = [engine.claim(claim(str(number))) for number in range(10_000)]
    loop.block(blocked)
    await asyncio.gather(*futures)
    await engine.drain()


class Full(MemoryStore):
    """Executes no claim: each batch has enough large results."""

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        return [Code.AGAIN for _ in ops]


async def test_claims_that_the_store_never_executes_end_in_time() -> None:
    """Each answer put their deadline off, so their callers waited without end."""
    engine = Engine(Full(), timeout=0.1)
    async with asyncio.timeout(5):
        calls = [engine.claim(claim("k")), engine.claim(claim("k")), engine.claim(claim("j"))]
        replies = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(reply) for reply in replies] == [RefusedAlone] * 3
    await engine.drain()


async def test_a_waiter_follows_no_claim_that_was_sent_before_it_listened(store: HeldStore) -> None:
    """What the store has answered may have changed since, and the news of that come before the waiter listened."""
    engine = Engine(store, timeout=5)
    early = engine.claim(waiting("k"))
    await turns()
    late = [engine.claim(waiting("k")) for _ in range(3)]
    await turns()
    assert store.sizes == [1, 1]
    store.let_go(0)
    await early
    assert not any(each.done() for each in late)
    store.let_go(1)
    await asyncio.gather(*late)


async def test_waiters_of_one_turn_share_few_claims(store: HeldStore) -> None:
    engine = Engine(store, timeout=5)
    futures = [engine.claim(waiting("k")) for _ in range(100)]
    await turns()
    assert sum(store.sizes) == 2
    store.let_go(0)
    await asyncio.gather(*futures)


async def test_too_much_pending_is_refused() -> None:
    engine = Engine(HeldStore(), timeout=0.02, max_pending=2)
    futures = [engine.claim(claim("a")), engine.claim(claim("a"))]
    with pytest.raises(UnavailableError, match="2 operations are pending"):
        engine.claim(claim("a"))
    with pytest.raises(UnavailableError, match="2 operations are pending"):
        engine.submit(settle("b"))
    await asyncio.gather(*futures, return_exceptions=True)
    assert engine.pending == 0


@pytest.mark.parametrize("error", [UnavailableError("down", retry_after=7), ZeroDivisionError("a bug")])
async def test_a_failed_batch_tells_every_waiter(error: Exception, store: HeldStore) -> None:
    store.held = False
    store.error = error
    engine = Engine(store, timeout=5)
    futures = [engine.claim(claim("same")) for _ in range(3)] + [engine.submit(settle("s"))]
    answers: list[Any] = await asyncio.gather(*futures, return_exceptions=True)
    assert {type(answer) for answer in answers} == {type(error)}
    if isinstance(error, UnavailableError):
        assert len({id(answer) for answer in answers}) == 4, "an instance each"
        assert {answer.retry_after for answer in answers} == {7}
    assert engine.pending == 0


async def test_equal_claims_travel_as_one(store: HeldStore) -> None:
    store.held = False
    engine = Engine(store, timeout=5)
    futures = [engine.claim(claim("same")) for _ in range(100)]
    replies = await asyncio.gather(*futures)
    assert store.sizes == [1]
    outcomes = [reply.outcome for reply in replies if isinstance(reply, Verdict)]
    assert outcomes == [Outcome.ACQUIRED] + [Outcome.IN_PROGRESS] * 99


async def test_draining_answers_what_was_accepted_and_refuses_more(store: HeldStore) -> None:
    engine = Engine(store, timeout=5, max_batch=2, max_in_flight=1)
    futures = [engine.claim(claim(f"k{n}")) for n in range(5)]
    await turns()
    draining = asyncio.create_task(engine.drain())
    await turns()
    with pytest.raises(UsageError, match="closed"):
        engine.submit(settle("s"))
    store.held = False
    store.let_go(0)
    await draining
    assert all(future.done() for future in futures)
