"""A store made of parts: each has an engine and a breaker of its own, and they come and go."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest

from fastdedup import BreakerState, Dedup, LocalLRU, Outcome, Reject, UnavailableError, UsageError
from fastdedup.events import BreakerClosed, BreakerOpened, Conflict, Event, Replayed
from fastdedup.kernel.operations import ClaimOp, Op, ReadOp, Reply
from fastdedup.kernel.owners import draw_owner
from fastdedup.kernel.shards import ShardedEngine, together
from fastdedup.kernel.terms import Mode, terms
from fastdedup.kernel.verbs import Verb
from fastdedup.model import Batching
from fastdedup.model import BreakerState as State
from fastdedup.stores.base import ShardedStore, Store
from fastdedup.stores.memory import MemoryStore

from ..virtual import pass_time, virtual

CLOSED, PARTLY_OPEN, OPEN = State.CLOSED, State.PARTLY_OPEN, State.OPEN
COUNT = 3
STARTED = time.time()
"""Of the parts' clocks: what a policy made is not adopted where its fence is far ahead of the store's clock."""


class Part(MemoryStore):
    """One part of the store."""

    def __init__(self, number: int) -> None:
        super().__init__(clock=lambda: STARTED + asyncio.get_running_loop().time())
        self.name = f"part {number}"
        self.down = False
        self.held: asyncio.Future[None] | None = None
        self.asked: list[tuple[Verb, bytes]] = []

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        self.asked += [(verb, op.wire) for op in ops]
        if self.held is not None and verb is Verb.CLAIM:
            await self.held
        if self.down:
            raise UnavailableError(f"{self.name} is down")
        return await super().execute(verb, ops)


class Parted(MemoryStore):
    """The key "2:x" is held by part 2, wherever that number points by now."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[int, Part] = {number: Part(number) for number in range(COUNT)}

    def shard(self, wire: bytes) -> Store:
        number = int(wire.partition(b"=")[2].partition(b":")[0])
        if number not in self.parts:
            raise UnavailableError(f"no part is known to hold slot {number}")
        return self.parts[number]

    batching = Batching.WHOLE

    def shards(self) -> Sequence[Store]:
        return list(self.parts.values())

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        raise AssertionError("the router asks the parts")


@pytest.fixture
def store() -> Parted:
    return Parted()


async def open_breaker(dedup: Dedup, key: str) -> None:
    for number in range(3):
        with pytest.raises(UnavailableError):
            await dedup.claim(f"{key}-{number}")


def router_of(dedup: Dedup) -> ShardedEngine:
    router = dedup.gate.connection.running_engine()
    assert isinstance(router, ShardedEngine)
    return router


def test_a_store_of_parts_is_recognised() -> None:
    assert isinstance(Parted(), ShardedStore)
    assert not isinstance(MemoryStore(), ShardedStore)


def claim_op(key: str) -> ClaimOp:
    """A claim as the gate makes it."""
    return ClaimOp(f"fastdedup:={key}".encode(), terms(Mode.CLAIM, 30_000, 60_000, False), draw_owner(), None)


@virtual
async def test_each_operation_goes_to_the_part_that_holds_its_key(store: Parted) -> None:
    async with Dedup(store, namespace="t") as dedup:
        claims = await dedup.claim_many([f"{number}:k" for number in range(COUNT)])
        await asyncio.gather(*(claim.complete(claim.key) for claim in claims))
        for number, part in store.parts.items():
            wire = b"t:=%d:k" % number
            assert part.asked == [(Verb.CLAIM, wire), (Verb.SETTLE, wire)]
            assert (await dedup.claim(f"{number}:k")).result == f"{number}:k"


@virtual
async def test_a_part_that_is_down_opens_its_own_breaker_and_the_others_answer(store: Parted) -> None:
    async with Dedup(store) as dedup:
        assert dedup.breaker is CLOSED
        store.parts[1].down = True
        await open_breaker(dedup, "1:k")
        assert dedup.breaker is PARTLY_OPEN
        assert (await dedup.claim("0:k")).acquired
        store.parts[1].asked.clear()
        with pytest.raises(UnavailableError, match=r"part 1 is down \(breaker open"):
            await dedup.claim("1:k")
        assert store.parts[1].asked == []
        store.parts[1].down = False
        await pass_time(0.5)
        assert dedup.breaker is CLOSED
        assert (await dedup.claim("1:k")).acquired


@virtual
async def test_it_is_open_where_no_part_answers(store: Parted) -> None:
    async with Dedup(store) as dedup:
        for number, part in store.parts.items():
            part.down = True
            await open_breaker(dedup, f"{number}:k")
        assert dedup.breaker is OPEN


@pytest.mark.parametrize(
    ("states", "whole"),
    [
        ([], OPEN),
        ([CLOSED, CLOSED], CLOSED),
        ([OPEN, OPEN], OPEN),
        ([OPEN, CLOSED], PARTLY_OPEN),
        ([CLOSED, PARTLY_OPEN], PARTLY_OPEN),
    ],
)
def test_the_whole_is_as_its_parts_are(states: list[BreakerState], whole: BreakerState) -> None:
    assert together(states) is whole


@virtual
async def test_a_key_that_no_part_holds_is_answered_by_the_policy(store: Parted) -> None:
    async with Dedup(store, on_unavailable=LocalLRU()) as dedup:
        held = await dedup.claim("7:k")
        assert (held.acquired, held.degraded) == (True, True)
        strict = dedup.scoped("strict", on_unavailable=Reject(retry_after=9.0))
        with pytest.raises(UnavailableError, match="no part is known") as caught:
            await strict.claim("7:k")
        assert caught.value.retry_after == 9.0
        store.parts[7] = Part(7)
        await pass_time(1.0)
        assert (await dedup.claim("7:k")).outcome is Outcome.IN_PROGRESS
        await held.complete("brought home")
        assert (await dedup.claim("7:k")).result == "brought home"
        assert (Verb.ADOPT, b"fastdedup:=7:k") in store.parts[7].asked


class Adopting(Part):
    """A part that may hang when it is asked to adopt records."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.hangs = False

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        if self.hangs and verb is Verb.ADOPT:
            await pass_time(3600)
        return await super().execute(verb, ops)


class Journalled:
    """A gate whose `LocalLRU` has answered for three parts that are down."""

    def __init__(self, each: int) -> None:
        self.each = each
        self.store = Parted()
        self.store.parts = {number: Adopting(number) for number in range(COUNT)}
        self.policy = LocalLRU()
        self.events: list[Event] = []
        self.dedup = Dedup(self.store, timeout=0.25, on_unavailable=self.policy, on_event=self.events.append)

    async def outage(self) -> None:
        for part in self.store.parts.values():
            part.down = True
        for number in range(self.each):
            for part in self.store.parts:
                assert (await self.dedup.claim(f"{part}:{number}", lease=3600)).degraded

    def asked(self, part: int) -> int:
        return sum(verb is Verb.ADOPT for verb, _ in self.store.parts[part].asked)


@virtual
@pytest.mark.parametrize("trouble", ["refuses", "hangs"])
async def test_what_one_part_does_not_adopt_holds_up_no_other(trouble: str) -> None:
    gate = Journalled(300)
    async with gate.dedup:
        await gate.outage()
        bad, good = gate.store.parts[0], gate.store.parts[1]
        assert isinstance(bad, Adopting)
        bad.hangs, bad.down, good.down = trouble == "hangs", trouble == "refuses", False
        await pass_time(1.0)
        assert gate.policy.lines == 600
        assert (await gate.dedup.claim("1:fresh")).degraded is False
        assert Replayed(300, 0) in gate.events
        gate.store.parts[2].down = False
        await pass_time(1.0)
        assert gate.policy.lines == 300
        bad.hangs = bad.down = False
        await pass_time(3.0)
        assert gate.policy.lines == 0
        assert not any(isinstance(event, Conflict) for event in gate.events)


@pytest.mark.no_cover
@virtual
async def test_parts_that_refuse_are_seldom_asked() -> None:
    """However many lines wait for them, and while another part takes its own."""
    gate = Journalled(600)
    async with gate.dedup:
        await gate.outage()
        for part in gate.store.parts.values():
            part.asked.clear()
        taken = 0
        real = gate.policy.next_operations

        def counted(most: int, lane: bytes) -> Sequence[Op]:
            nonlocal taken
            ops = real(most, lane)
            taken += len(ops)
            return ops

        gate.policy.next_operations = counted  # type: ignore[method-assign, assignment]
        gate.store.parts[1].down = False
        await pass_time(30.0)
        assert gate.policy.lines == 1200
        attempts = (taken - 600) / 256
        assert attempts <= 2 * 30.0 / 0.2
        assert gate.asked(0) == gate.asked(2) == 0, "their breakers are open"


@pytest.mark.no_cover
@virtual
async def test_lines_of_keys_that_moved_follow_them() -> None:
    """From a part that is down to a part that answers, and to one that does not."""
    gate = Journalled(300)
    async with gate.dedup:
        await gate.outage()
        for part in gate.store.parts.values():
            part.down = True
        gate.store.parts[0] = Adopting(10)
        gate.store.parts[2] = Adopting(12)
        gate.store.parts[2].down = True
        await pass_time(10.0)
        assert gate.policy.lines == 600
        gate.store.parts[1].down = gate.store.parts[2].down = False
        await pass_time(2.0)
        assert gate.policy.lines == 0


@virtual
async def test_gates_that_share_a_policy_go_on_for_each_other() -> None:
    """The gate that was to bring the lines home is closed first."""
    gate = Journalled(300)
    other = Dedup(gate.store, namespace="other", on_unavailable=gate.policy)
    async with other:
        async with gate.dedup:
            await gate.outage()
            assert (await other.claim("1:k")).degraded
        for part in gate.store.parts.values():
            part.down = False
        await pass_time(2.0)
        assert gate.policy.lines == 0


@virtual
async def test_a_part_that_has_gone_is_drained_and_what_it_held_is_answered(store: Parted) -> None:
    """Nothing is lost that it had accepted, and new operations go to its successor."""
    async with Dedup(store) as dedup:
        gone = store.parts[1]
        gone.held = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(dedup.claim("1:before"))
        await pass_time(0.01)
        store.parts[1] = Part(11)
        after = await dedup.claim("1:after")
        assert after.acquired
        gone.held.set_result(None)
        assert (await waiting).acquired
        assert [wire for _, wire in gone.asked] == [b"fastdedup:=1:before"]
        router = router_of(dedup)
        assert gone not in router.engines


@virtual
@pytest.mark.parametrize("answers", [True, False], ids=["it answers the last probe", "it hangs"])
async def test_a_breaker_closes_once_when_its_part_has_gone(answers: bool, store: Parted) -> None:
    events: list[Event] = []
    async with Dedup(store, on_event=events.append, on_unavailable=Reject()) as dedup:
        gone = store.parts[1]
        gone.down = True
        await open_breaker(dedup, "1:k")
        gone.down = not answers
        del store.parts[1]
        await pass_time(5.0)
        assert router_of(dedup).engines == {}
    changes = [event for event in events if isinstance(event, BreakerOpened | BreakerClosed)]
    assert [(type(event), event.store) for event in changes] == [
        (BreakerOpened, "part 1"),
        (BreakerClosed, "part 1"),
    ]


@virtual
async def test_closing_the_gate_closes_no_breaker(store: Parted) -> None:
    events: list[Event] = []
    async with Dedup(store, on_event=events.append) as dedup:
        store.parts[1].down = True
        await open_breaker(dedup, "1:k")
    assert not any(isinstance(event, BreakerClosed) for event in events)


@virtual
async def test_a_part_that_has_gone_is_not_probed_for_ever(store: Parted) -> None:
    """Also where no new one takes its place."""
    async with Dedup(store) as dedup:
        gone = store.parts[2]
        gone.down = True
        await open_breaker(dedup, "2:k")
        assert dedup.breaker is PARTLY_OPEN or dedup.breaker is OPEN
        del store.parts[2]
        await pass_time(3.0)
        gone.asked.clear()
        await pass_time(60.0)
        assert gone.asked == []


@virtual
async def test_draining_answers_what_every_part_has_accepted(store: Parted) -> None:
    dedup = await Dedup(store).open()
    release = asyncio.get_running_loop().create_future()
    for part in store.parts.values():
        part.held = release
    claims = [asyncio.ensure_future(dedup.claim(f"{number}:k")) for number in range(COUNT)]
    await pass_time(0.01)
    router = router_of(dedup)
    assert (router.in_flight, router.pending) == (COUNT, COUNT)
    closing = asyncio.ensure_future(dedup.aclose())
    await pass_time(0.01)
    release.set_result(None)
    assert all(claim.acquired for claim in await asyncio.gather(*claims))
    await closing
    with pytest.raises(UsageError):
        await dedup.claim("0:late")


@virtual
async def test_a_cancelled_claim_is_released_where_its_key_is_by_then(store: Parted) -> None:
    """The answer had come, and before its caller resumed, it was cancelled and the key's part changed."""
    async with Dedup(store) as dedup:
        op = claim_op("1:k")
        await router_of(dedup).claim(op)
        successor = store.parts[1] = Part(11)
        router_of(dedup).free_orphan(op)
        await pass_time(0.01)
        assert successor.asked == [(Verb.RELEASE, b"fastdedup:=1:k")]


@virtual
async def test_cancelling_stays_a_cancellation_where_the_key_is_out_of_reach(store: Parted) -> None:
    """Else the task that was cancelled would go on, with an outage of a key it no longer wants."""
    async with Dedup(store) as dedup:
        op = claim_op("1:k")
        await router_of(dedup).claim(op)
        del store.parts[1]
        router_of(dedup).free_orphan(op)


@virtual
async def test_a_claim_that_was_cancelled_before_any_part_accepted_it_is_nobodys() -> None:
    async with Dedup(Parted()) as dedup:
        router_of(dedup).free_orphan(claim_op("1:k"))


@virtual
async def test_after_closing_no_engine_is_made_for_a_latecomer(store: Parted) -> None:
    """It would probe and hold its store for ever."""
    dedup = await Dedup(store).open()
    op = claim_op("1:k")
    router = router_of(dedup)
    await router.claim(op)
    await dedup.aclose()
    store.parts[1] = Part(11)
    router.free_orphan(op)
    with pytest.raises(UsageError):
        router.submit(ReadOp(b"fastdedup:=1:k"))
    assert store.parts[1] not in router.engines


@virtual
async def test_another_event_loop_cannot_make_an_engine() -> None:
    """It would belong to that loop, and fail for everybody ever after."""
    async with Dedup(Parted()) as dedup:
        errors: list[BaseException] = []

        async def strays() -> None:
            try:
                await dedup.claim("0:k")
            except UsageError as error:
                errors.append(error)

        thread = threading.Thread(target=lambda: asyncio.run(strays()))
        thread.start()
        thread.join()
        assert [type(error) for error in errors] == [UsageError]
        assert (await dedup.claim("0:k")).acquired
