"""What a ledger promises of one id, as one pure function, and of a claim whose success the ledger remembers.

`step` is to these what `spec.step` is to a record; the numbers are the guarantees of `fastdedup/stores/base.py`. An
id is remembered for the ledger's window, and forgotten at the latest 1 % of the window later. A call that asks with
patience is told PENDING of an id that another call has remembered less than so many ticks ago, and may be told so for
one tick more. In between a store may give either answer, so nothing asks then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from . import spec
from .spec import clock, differ, is_live, is_owner, present
from .words import ABSENT, HELD, OK, SETTLED, Claim, Clock, Record, Reply, Settle

ALREADY, PENDING = Reply("ALREADY"), Reply("PENDING")
COMPLETED = bytes(4)
"""The name of what has remembered an id if that was a claim's completion: no call of `first` has it."""
TICK = 500


class Entry(NamedTuple):
    """A remembered id: the name of the call that was the first, and until when it is certainly remembered."""

    call: bytes
    until: int


class Place(NamedTuple):
    """What a ledger's store keeps of one key."""

    record: Record | None = None
    entry: Entry | None = None


@dataclass(frozen=True, slots=True)
class First:
    """Ask whether this call is the first one that names the id.

    `patience`: for how many ticks another call may still be taken back. Until then the id is no duplicate yet.
    """

    call: bytes
    window: int
    patience: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """Ask whether the id is remembered; with the name of a call, whether by that call."""

    call: bytes = b""


@dataclass(frozen=True, slots=True)
class ForgetId:
    """Forget the id; with the name of a call only if that call has remembered it."""

    call: bytes = b""


@dataclass(frozen=True, slots=True)
class ClaimRemembered:
    """Claim the key, unless the ledger knows that it is done."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class CompleteRemembered:
    """Complete the claim: the ledger remembers it, and the record stays for a moment as an echo."""

    settle: Settle
    window: int


OF_LEDGERS = (First, Seen, ForgetId, ClaimRemembered, CompleteRemembered)


def step(place: Place, operation: Any, now_us: int) -> tuple[Place, Reply]:
    """Return what stands after an operation, and the reply. An operation on the record alone goes to `spec.step`."""
    if place.entry is None and not isinstance(operation, OF_LEDGERS):
        record, reply = spec.step(place.record, operation, now_us)
        return Place(record), reply
    now = clock(now_us)
    record, entry = present(place.record, now_us), place.entry
    if entry is not None and entry.until < now.ms:
        entry = None  # [18]
    match operation:
        case First(call, window):
            if entry is None:
                return Place(record, Entry(call, now.ms + window)), OK  # [16]
            return Place(record, entry), OK if entry.call == call else known(entry, operation, now)  # [17]
        case Seen(call):
            mine = entry is not None and entry.call == call
            return Place(record, entry), OK if mine else ALREADY if entry else ABSENT
        case ForgetId(call):
            goes = entry is not None and call in (b"", entry.call)  # [19]
            return (Place(record), OK) if goes else (Place(record, entry), ABSENT)
        case ClaimRemembered(ask):
            if entry is not None and would_acquire(record, ask, now_us):
                # [20] also if it was released, or its lease is over
                return Place(record, entry), Reply("SUCCEEDED")
            record, reply = spec.step(record, ask, now_us)
            return Place(record, entry), reply
        case CompleteRemembered(ask, window):
            if entry is None and is_owner(record, ask) and record.state in HELD:
                entry = Entry(COMPLETED, now.ms + window)  # [20] in the same step
            record, reply = spec.step(record, ask, now_us)
            return Place(record, entry), reply
    record, reply = spec.step(record, operation, now_us)
    return Place(record, entry), reply


def known(entry: Entry, ask: First, now: Clock) -> Reply:
    """Return what a call is told of an id that another one has remembered. What a completion has, stays."""
    age = now.ms - (entry.until - ask.window)
    return PENDING if age < ask.patience * TICK and entry.call != COMPLETED else ALREADY  # [17]


def would_acquire(record: Record | None, ask: Claim, now_us: int) -> bool:
    if record is None:
        return True
    free = record.state not in SETTLED and not is_live(record, clock(now_us))
    return free and not differ(record, ask.fingerprint)
