"""The store's records that this process last saw, kept beside the records that a fallback makes itself.

They serve in an outage: a claim that this process holds in the store is not given to another caller here, and can
be settled; a success that the store reported is repeated. While the store answers, these records are not read. A
held claim stays until its lease ends. All other records may be dropped, the longest unused first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, assert_never, cast

from ..errors import UnavailableError
from ..kernel.codes import Code
from ..kernel.granted import may_be_undone
from ..kernel.operations import (
    ClaimOp,
    ForgetOp,
    Op,
    OwnerOp,
    ReadOp,
    RenewOp,
    Reply,
    SettleOp,
    TransitionOp,
    Verdict,
)
from ..kernel.records import Stored
from ..kernel.replies import TransitionReply
from ..kernel.verbs import Effect, Verb
from ..ledger.operations import SeenOp, without_ledger
from ..model import Outcome
from ..stores.entry import Entry, is_held, is_of
from ..stores.memory import MemoryStore

NOBODY = b""
"""Replaces an owner that this process does not know: no caller here can settle the record."""

_STATES = {
    Outcome.IN_PROGRESS: "P",
    Outcome.SUCCEEDED: "S",
    Outcome.FAILED: "F",
}
_ACQUIRED = Outcome.ACQUIRED
_CHANGED = (Code.OK, Code.UNCONFIRMED, Code.ABSENT)
_SPARE_SLACK = 1024
_LOOK_AGAIN_MS = 1000
"""Milliseconds between two looks for ended claims, if the end of the next one is unknown."""
Change = Callable[["LastSeen", Any, Entry, int], None]
"""Changes the record of an operation's key like the store, at a time in ms since 1970."""


class SeenEntry(Entry):
    """The record of a claim whose success a ledger remembers. `seen`: asks whether the ledger knows its id."""

    __slots__ = ("seen",)

    seen: SeenOp


class LastSeen:
    """Writes the records that are seen in a store into a memory store.

    Args:
        pinned: returns whether the record of a key was changed here, so that the store has another one.
    """

    def __init__(self, store: MemoryStore, pinned: Callable[[bytes], bool]) -> None:
        self._store = store
        self._pinned = pinned
        # Not a plain dict, which looks for its first key behind all removed ones: 100 µs in a full policy.
        self.spare: OrderedDict[bytes, None] = OrderedDict()
        """The store keys of records that may be dropped, the longest unused first."""
        # Mutable: the end of the next lease among the other records.
        self._next_end = 0
        self.blind_until = 0
        """ms since 1970. Until then the store may have a live claim for which there was no room here."""

    def saw(self, op: Op, reply: Reply) -> None:
        """Note the store's reply to an operation."""
        if isinstance(op, ClaimOp):
            if type(reply) is Verdict:
                if op.terms.remembered and not reply.attempt:
                    self.drop(op.wire)  # there is no record: only a ledger knows of the success
                else:
                    self._saw_claim(op, reply)
        elif isinstance(op, TransitionOp):
            if isinstance(reply, TransitionReply) and reply.version:
                self._saw_machine(op, reply)
        elif isinstance(op, ReadOp):
            if isinstance(reply, Stored):
                self._saw_record(op.wire, reply)
        elif reply in _CHANGED:
            self._saw_change(op)

    def used(self, wire: bytes) -> None:
        """Drop this key later than the others."""
        if wire in self.spare:
            self.spare.move_to_end(wire)

    def pin(self, wire: bytes) -> None:
        """Never drop this key, because its record was changed here, and the store does not have the change."""
        self.spare.pop(wire, None)

    def keep(self, wire: bytes, entry: Entry | None) -> None:
        """Treat a record that the store has adopted like one that was seen there."""
        if entry is None or entry.state in "IR":
            self.drop(wire)
        elif entry.state not in "PW":
            self.spare[wire] = None
        elif entry.token:
            self._store.keep(wire, entry, entry.until)
        else:
            self._next_end = min(self._next_end, entry.until)

    def lost(self, wire: bytes, entry: Entry | None) -> None:
        """Keep a record that the store has refused, because it has another owner's, which is not known here.

        If the next outage begins before the store is asked for the key, this process must not do the work again. Its
        own result is repeated, and its machine goes on from its own state. Its claim keeps the key until the lease
        ends, but only the store can settle it.
        """
        if entry is None or entry.state in "IR" or entry.token or isinstance(entry, SeenEntry):
            self.drop(wire)
            return
        if entry.state in "PW":
            entry.owner = NOBODY
        self.spare[wire] = None

    def drop(self, wire: bytes) -> None:
        """Forget a record."""
        self.spare.pop(wire, None)
        self._store.drop(wire)

    def drop_oldest(self) -> bool:
        """Drop the longest unused record; False if no record may be dropped."""
        while self.spare or self._find_ended():
            wire = next(iter(self.spare))
            held = self._store.entry(wire) is not None
            self.drop(wire)
            if held:
                return True
        return False

    def _find_ended(self) -> bool:
        """Find claims whose lease is over: they may be dropped. Called only when there is no room."""
        now = self._store.now()
        if now < self._next_end:
            return False
        self._next_end = now + _LOOK_AGAIN_MS
        for wire, entry in self._store:
            if entry.state in "PW" and not self._pinned(wire):
                if entry.until <= now:
                    self.spare[wire] = None
                else:
                    self._next_end = min(self._next_end, entry.until)
        return bool(self.spare)

    def _saw_claim(self, op: ClaimOp, verdict: Verdict) -> None:
        # Every claim takes this path, so this avoids every call that is not needed.
        wire, terms, now = op.wire, op.terms, self._store.now()
        until = expires = now + verdict.left_ms
        known = self._store.entry(wire)
        token = not (terms.shared or terms.remembered)
        if verdict.outcome is _ACQUIRED:
            state, owner = "S" if terms.consumes else "P", op.owner
            if not token:
                # After its lease a claim counts attempts; only the store knows the state of a token.
                expires += terms.ttl_ms
        else:
            state, owner = _STATES.get(verdict.outcome, ""), NOBODY
            if not state:
                return
            if known is not None and known.fence == verdict.fence and same(known.state, state):
                self.used(wire)  # the known record says more: its owner, and its fingerprint
                known.fingerprint = known.fingerprint or op.fingerprint  # the store has compared this one
                return
            if token and state == "S" and may_be_undone(wire, verdict.payload):
                self.drop(wire)
                return
        kind = SeenEntry if terms.remembered else Entry
        entry = kind(state, owner, verdict.fence, verdict.attempt, until, 0)
        if terms.remembered:
            cast(SeenEntry, entry).seen = cast(SeenOp, op.of_id())
        entry.fingerprint = op.fingerprint
        entry.payload = verdict.payload
        entry.token = token
        self._put(wire, entry, expires, known)

    def _saw_machine(self, op: TransitionOp, moved: TransitionReply) -> None:
        now, known = self._store.now(), self._store.entry(op.wire)
        if moved.code is Code.OK:
            change = op.change
        elif known is not None and known.state == "M" and known.fence == moved.version:
            self.used(op.wire)  # the known record says more: its last change
            return
        else:
            change = NOBODY
        entry = Entry("M", change, moved.version, 0, 0, 0)
        entry.payload = moved.state.encode()
        self._put(op.wire, entry, now + op.keep_ms, known)

    def _saw_record(self, wire: bytes, record: Stored) -> None:
        now, known = self._store.now(), self._store.entry(wire)
        if known is not None and not is_news(record, known, now):
            self.used(wire)
        elif record.token and record.state == "S" and may_be_undone(wire, record.payload):
            self.drop(wire)
        elif record.state in "PWSFM":
            self._put(wire, *read_entry(record, known, now), known)

    @classmethod
    def change_of(cls, verb: Verb) -> Change | None:
        """Return the function that changes a record here like the store; None if `saw` needs more than its code."""
        row = verb.row
        if row.of_ledger:
            return None  # there is no record
        match row.effect:
            case Effect.FREES:
                return cls._settle if row.result else cls._release
            case Effect.EXTENDS:
                return cls._extend
            case Effect.REMOVES:
                return cls._forget
            case Effect.CLAIMS | Effect.DECIDES | Effect.READS:
                return None
            case Effect.MAKES | Effect.BRINGS:
                return None  # a token is seen when it is used; `keep` gets a record that was adopted
            case _:
                assert_never(row.effect)

    def _saw_change(self, op: Op) -> None:
        now = self._store.now()
        entry = self._store.entry(op.wire)
        change = _CHANGES[op.verb]
        if entry is not None and change is not None:
            change(self, op, entry, now)
        elif isinstance(op, RenewOp) and now < self.blind_until:
            self.blind_until = max(self.blind_until, now + op.lease_ms)  # it may be the claim without room

    def _forget(self, op: ForgetOp, entry: Entry, now: int) -> None:
        # A claim's reply takes a shorter path than a removal's: a live claim may be the later of the two.
        if entry.owner == NOBODY or not is_held(entry, now):
            self.drop(op.wire)

    def _release(self, op: OwnerOp, entry: Entry, now: int) -> None:
        if is_of(entry, op):
            self.drop(op.wire)

    def _extend(self, op: OwnerOp, entry: Entry, now: int) -> None:
        if is_of(entry, op):
            self._store.apply(op)
            if entry.token and entry.state in "PW":
                self._store.keep(op.wire, entry, entry.until)  # see `_saw_claim`

    def _settle(self, op: SettleOp, entry: Entry, now: int) -> None:
        """Settle the record here like the store."""
        if not is_of(entry, op):
            return
        try:
            self._store.apply(op if op.also is None else without_ledger(op))
        except UnavailableError:  # no room for its result
            self.drop(op.wire)
            return
        self.spare[op.wire] = None
        self._trim()

    def _put(self, wire: bytes, entry: Entry, expires: int, known: Entry | None) -> None:
        held = entry.state == "P" and entry.owner != NOBODY
        self.spare.pop(wire, None)
        if known is not None:
            self._store.drop(wire)  # it is stored anew, because its payload may need more room than before
        try:
            self._store.put(wire, entry, expires)
        except UnavailableError:
            if held:
                self.blind_until = max(self.blind_until, entry.until)
            return
        if not held:
            self.spare[wire] = None
            self._trim()
        elif entry.until < self._next_end:
            self._next_end = entry.until

    def _trim(self) -> None:
        """Remove the keys of expired records, because the memory store does not report when it drops them."""
        if len(self.spare) > 2 * len(self._store) + _SPARE_SLACK:
            kept = (wire for wire in self.spare if self._store.entry(wire) is not None)
            self.spare = OrderedDict.fromkeys(kept)


_CHANGES: Final = {verb: LastSeen.change_of(verb) for verb in Verb}


def same(known: str, told: str) -> bool:
    """True if two states mean the same to a claimant: P, and W with a waiter."""
    return known == told or (known == "W" and told == "P")


def is_news(record: Stored, known: Entry, now: int) -> bool:
    """True if a record that was read is later than the known one: a claim's reply may overtake a read's."""
    if record.fence != known.fence or known.state not in "PW":
        return record.fence > known.fence
    renewed = record.state in "PW" and known.owner == NOBODY and now + record.left_ms > known.until
    return renewed or record.state in "SF"


def read_entry(record: Stored, known: Entry | None, now: int) -> tuple[Entry, int]:
    """Return an entry for a record that was read, and when it expires. A reader never becomes a claim's owner."""
    machine, live = record.state == "M", record.state in "PW"
    ours = known is not None and (known.owner, known.fence) == (record.owner, record.fence)
    expires = now + (record.left_ms if live and record.token else record.ttl_ms)
    until = now + record.left_ms if live else expires
    owner = record.owner if machine or ours else NOBODY
    entry = Entry("P" if live else record.state, owner, record.fence, record.attempt, until, 0)
    entry.fingerprint, entry.payload, entry.token = record.fingerprint, record.payload, record.token
    return entry, expires
