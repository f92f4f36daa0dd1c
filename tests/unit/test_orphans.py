"""Orphans are freed node by node: a node of the store that is down holds up no other."""

from __future__ import annotations

import asyncio

import pytest

from fastdedup import UnavailableError, UsageError
from fastdedup.core.orphans import Orphans
from fastdedup.errors import DedupError
from fastdedup.events import Event
from fastdedup.kernel.operations import ClaimOp, Op, Reply
from fastdedup.kernel.owners import Noted, draw_owner, owner_field
from fastdedup.kernel.terms import Mode, terms
from fastdedup.stores.memory import MemoryStore

from ..virtual import pass_time, virtual
from ..waiting import wait_until

TERMS = terms(Mode.CLAIM, 60_000, 120_000, False)


class Parts:
    """A store of two parts; the one whose keys begin with `down` refuses."""

    def __init__(self, fault: DedupError) -> None:
        self.store = MemoryStore()
        self.down = b"down"
        self.refused = 0
        self._fault = fault

    def submit(self, op: Op) -> asyncio.Future[Reply]:
        if not self.asks(op.wire):
            self.refused += 1
            raise self._fault
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        future.set_result(self.store.apply(op))
        return future

    def asks(self, wire: bytes) -> bool:
        return not self.down or not wire.startswith(self.down)

    def claimed(self, wire: bytes) -> ClaimOp:
        op = ClaimOp(wire, TERMS, draw_owner(), None)
        self.store.apply(op)
        return op

    def holds(self, wire: bytes) -> bool:
        self.store.now()
        entry = self.store.entry(wire)
        return entry is not None and entry.state in "PW"


async def test_an_owner_with_notes_is_taken_back_too() -> None:
    """A gate with `holder=` draws such owners; a name that the caller chose gets its claim back instead."""
    parts = Parts(UnavailableError("down"))
    orphans = Orphans(parts.submit, lambda event: None)
    for wire, owner in ((b"noted", Noted(lambda: ("web-1:7",)).draw()), (b"named", owner_field("worker-1"))):
        op = ClaimOp(wire, TERMS, owner, None)
        parts.store.apply(op)
        orphans.add(op)
    await wait_until(lambda: not len(orphans), description="it is taken back")
    assert (parts.holds(b"noted"), parts.holds(b"named")) == (False, True)


@virtual
@pytest.mark.parametrize("closes", [False, True])
async def test_a_claim_that_was_sent_twice_is_freed_at_its_time(closes: bool) -> None:
    """The watch for its late copy freed the key itself, 0.3 s after its lease was set to end at that time."""
    loop = asyncio.get_running_loop()
    parts = Parts(UnavailableError("down"))
    parts.store = MemoryStore(clock=loop.time)
    orphans = Orphans(parts.submit, lambda event: None)
    op = parts.claimed(b"up")
    op.resent = True
    entry = parts.store.entry(b"up")
    assert entry is not None
    orphans.add(op, entry.fence, free_at=30.0)
    await pass_time(29.0)  # its time is near
    if closes:
        await orphans.finish(1.0)
    assert parts.holds(b"up")
    entry = parts.store.entry(b"up")
    assert entry is not None
    assert 29_999 <= entry.until <= 30_001
    await wait_until(lambda: closes or not parts.holds(b"up"), description="its copy is freed")
    await orphans.finish(1.0)


@pytest.mark.parametrize("fault", [UnavailableError("down"), UsageError("closed")], ids=str)
async def test_a_part_that_is_down_holds_up_no_other(fault: DedupError) -> None:
    """Also where more was given up there than one round looks at."""
    events: list[Event] = []
    parts = Parts(fault)
    orphans = Orphans(parts.submit, events.append)
    for number in range(600):
        orphans.add(parts.claimed(b"down:%d" % number))
    orphans.add(parts.claimed(b"up"))
    await wait_until(lambda: not parts.holds(b"up"), description="the other part's is freed")
    await wait_until(lambda: len(orphans) == 600, description="it is struck off the list")
    parts.down = b""
    orphans.retry_now()
    await wait_until(lambda: not len(orphans), description="all is freed")
    assert not any(parts.holds(b"down:%d" % number) for number in range(600))
    assert not events
    await orphans.finish(1.0)


async def test_a_part_with_an_open_breaker_is_not_asked() -> None:
    """Each refusal costs 10 µs, and there may be thousands: they kept the loop from the other parts' answers."""
    parts = Parts(UnavailableError("down"))
    orphans = Orphans(parts.submit, lambda event: None, parts.asks)
    for number in range(600):
        orphans.add(parts.claimed(b"down:%d" % number))
    orphans.add(parts.claimed(b"up"))
    await wait_until(lambda: len(orphans) == 600, description="the other part's is freed")
    orphans.retry_now()  # as another breaker has opened
    await wait_until(lambda: orphans._alarm is not None, description="nothing is due")
    assert not parts.refused
    parts.down = b""
    orphans.retry_now()
    await wait_until(lambda: not len(orphans), description="all is freed")
    await orphans.finish(1.0)
