"""The far end: what executes the operations that arrive, and how a trace shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import ClaimOp, Op, ReadOp, Reply, SettleOp, Verdict
from fastdedup.kernel.records import Stored
from fastdedup.ledger.memory import MemoryLedgers
from fastdedup.ledger.operations import (
    FOREVER_MS,
    FirstOp,
    ForgetIdOp,
    LedgerOp,
    LedgerPlace,
    SeenOp,
)

from .conversion import asked, told
from .windows import Entry, Place, step
from .words import Record


class FarEnd(Protocol):
    """What executes the operations: the executable contract, or a server."""

    def apply(self, op: Op) -> Reply:
        """Execute one operation now."""

    def records(self) -> Iterable[tuple[bytes, Stored]]:
        """Return each store key and its record as it is now."""

    def on_freed(self, tell: Callable[[bytes], None]) -> None:
        """Call `tell` for each watched key that is freed or settled."""


class SpecFarEnd:
    """The spec as the far end: what the simulated gates are told is what the contract says.

    The form of a ledger is not in the contract, so the memory store's ledgers keep it. Whether a gate may still rely
    on a form is asked here.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._forms = MemoryLedgers(lambda: None)
        self._listeners: list[Callable[[bytes], None]] = []
        self.kept: dict[bytes, Record | None] = {}
        """The records by their store keys."""
        self.ids: dict[bytes, Entry | None] = {}
        """The remembered ids by bucket and digest."""

    def apply(self, op: Op) -> Reply:
        now_us = round(self._clock() * 1_000_000)
        if isinstance(op, LedgerOp):
            return self._forms.create(op, now_us // 1000)
        place, until_ms = place_in_ledger(op)
        if now_us // 1000 > until_ms:
            return Code.STALE
        ask = asked(op)
        before = Place(self.kept.get(op.wire), self.ids.get(place))
        after, reply = step(before, ask, now_us)
        self.kept[op.wire], self.ids[place] = after
        if reply.wakes:
            for tell in self._listeners:
                tell(op.wire)
        return told(ask, reply, now_us)

    def records(self) -> Iterable[tuple[bytes, Stored]]:
        for wire in self.kept:
            found = self.apply(ReadOp(wire))
            if isinstance(found, Stored):
                yield wire, found

    def on_freed(self, tell: Callable[[bytes], None]) -> None:
        self._listeners.append(tell)


def place_in_ledger(op: Op) -> tuple[bytes, int]:
    """Return where an operation's id lies, empty if it has none, and until when its sender may rely on that."""
    match op:
        case FirstOp() | SeenOp():
            return op.place, op.terms.until_ms
        case ForgetIdOp():
            return op.place, op.until_ms
        case ClaimOp(unless=LedgerPlace() as place) | SettleOp(also=LedgerPlace() as place):
            return place.name, place.terms.until_ms
    return b"", FOREVER_MS


class Packet(NamedTuple):
    """What was sent at once."""

    number: int
    verb: str
    ops: Sequence[Op]

    def __str__(self) -> str:
        named = [f"{str(op.wire)[2:-1]} {_short(getattr(op, 'owner', b''))}".strip() for op in self.ops]
        return f"packet {self.number} {self.verb} {', '.join(named)}".strip()


def describe(reply: Reply) -> str:
    """Return a reply as a trace shows it."""
    if isinstance(reply, Verdict):
        return f"{reply.outcome}(fence {reply.fence}, {reply.left_ms} ms left)"
    if isinstance(reply, Stored):
        return f"record({reply.state}, owner {_short(reply.owner)}, fence {reply.fence}, {reply.left_ms} ms left)"
    if isinstance(reply, Code):
        return reply.name
    return repr(reply) if isinstance(reply, Exception) else type(reply).__name__


def _short(owner: bytes) -> str:
    return owner.hex()[2:8]
