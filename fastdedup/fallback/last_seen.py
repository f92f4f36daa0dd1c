"""What this process knows of the store's records, kept beside those that a fallback makes itself.

So that in an outage a claim that this process holds in the store is not given to another caller
here, can be settled, and a success that was told goes on being told. Never consulted while the
store answers. Claims that are held stay until their lease ends; all else may go, the longest unused first.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import UnavailableError
from ..model import Outcome
from ..protocol.operations import (
    ClaimOp,
    Code,
    ForgetOp,
    Moved,
    Op,
    ReleaseOp,
    RenewOp,
    Reply,
    SettleOp,
    TransitionOp,
    Verdict,
)
from ..stores.memory import Entry, MemoryStore

NOBODY = b""
"""The owner of a record whose owner this process does not know: nobody here can settle it."""

_STATES = {
    Outcome.IN_PROGRESS: "P",
    Outcome.SUCCEEDED: "S",
    Outcome.FAILED: "F",
}
_ACQUIRED = Outcome.ACQUIRED
_CHANGED = (Code.OK, Code.UNCONFIRMED, Code.ABSENT)
_SPARE_SLACK = 1024
_LOOK_AGAIN_MS = 1000
"""Milliseconds between two looks for ended claims, where it is unknown when the next one ends."""


class LastSeen:
    """Writes into a memory store what was seen of another store.

    Args:
        pinned: True for a key whose record is not as the store has it.
    """

    def __init__(self, store: MemoryStore, pinned: Callable[[bytes], bool]) -> None:
        self._store = store
        self._pinned = pinned
        # Mutable: what may go, the longest unused first; when the next lease of those that may not ends.
        self._spare: dict[bytes, None] = {}
        self._next_end = 0
        self.blind_until = 0
        """Until then (ms since 1970) a claim made in the store may be live that found no room here."""

    def saw(self, op: Op, reply: Reply) -> None:
        """The store has answered `op`."""
        if isinstance(op, ClaimOp):
            if type(reply) is Verdict:
                self._saw_claim(op, reply)
        elif isinstance(op, TransitionOp):
            if isinstance(reply, Moved) and reply.version:
                self._saw_machine(op, reply)
        elif reply in _CHANGED:
            self._saw_change(op)

    def used(self, wire: bytes) -> None:
        """What was just used goes last."""
        if wire in self._spare:
            del self._spare[wire]
            self._spare[wire] = None

    def pin(self, wire: bytes) -> None:
        """Keep a record: from now on the store does not have it as it is here."""
        self._spare.pop(wire, None)

    def keep(self, wire: bytes, entry: Entry | None) -> None:
        """The store has this record now: hold it as if it had been seen there."""
        if entry is None or entry.state in "IR":
            self.drop(wire)
        elif entry.state not in "PW":
            self._spare[wire] = None
        elif entry.token:
            self._store.keep(wire, entry, entry.until)
        else:
            self._next_end = min(self._next_end, entry.until)

    def drop(self, wire: bytes) -> None:
        """Forget a record."""
        self._spare.pop(wire, None)
        self._store.drop(wire)

    def drop_oldest(self) -> bool:
        """Make room; False where nothing may go."""
        while self._spare or self._find_ended():
            wire = next(iter(self._spare))
            held = self._store.entry(wire) is not None
            self.drop(wire)
            if held:
                return True
        return False

    def _find_ended(self) -> bool:
        """Claims whose lease is over may go; looked for only when one must be."""
        now = self._store.now()
        if now < self._next_end:
            return False
        self._next_end = now + _LOOK_AGAIN_MS
        for wire, entry in self._store:
            if entry.state in "PW" and not self._pinned(wire):
                if entry.until <= now:
                    self._spare[wire] = None
                else:
                    self._next_end = min(self._next_end, entry.until)
        return bool(self._spare)

    def _saw_claim(self, op: ClaimOp, verdict: Verdict) -> None:
        # Every claim comes by here, so it makes no call that it can do without.
        wire, terms, now = op.wire, op.terms, self._store.now()
        until = expires = now + verdict.left_ms
        known = self._store.entry(wire)
        token = not terms.shared
        if verdict.outcome is _ACQUIRED:
            state, owner = "S" if terms.consumes else "P", op.owner
            if not token:
                # Beyond its lease a claim counts attempts; of a token the store alone can say what is next.
                expires += terms.keep_ms - terms.lease_ms
        else:
            state, owner = _STATES.get(verdict.outcome, ""), NOBODY
            if not state:
                return
            if known is not None and known.fence == verdict.fence and same(known.state, state):
                self.used(wire)  # and keep what is known beyond that: whose it is, and as what it was asked
                return
        entry = Entry(state, owner, verdict.fence, verdict.attempt, until, 0)
        entry.fingerprint = op.fingerprint
        entry.payload = verdict.payload
        entry.token = token
        self._put(wire, entry, expires, known)

    def _saw_machine(self, op: TransitionOp, moved: Moved) -> None:
        changed = moved.code is Code.OK
        entry = Entry("M", op.change if changed else NOBODY, moved.version, 0, 0, 0)
        entry.payload = moved.state.encode()
        self._put(op.wire, entry, self._store.now() + op.keep_ms, self._store.entry(op.wire))

    def _saw_change(self, op: Op) -> None:
        now = self._store.now()
        entry = self._store.entry(op.wire)
        if entry is None:
            return
        if isinstance(op, ForgetOp):
            # The news of a claim goes by a shorter way than that of a forgetting: a live one may be the later.
            if not (entry.state in "PW" and entry.owner != NOBODY and entry.until > now):
                self.drop(op.wire)
        elif not isinstance(op, SettleOp | ReleaseOp | RenewOp) or not is_of(entry, op):
            return
        elif isinstance(op, SettleOp):
            self._settle(op)
        elif isinstance(op, ReleaseOp):
            self.drop(op.wire)
        elif entry.state in "PW":
            entry.until = now + op.lease_ms
            self._store.keep(op.wire, entry, entry.until if entry.token else now + op.keep_ms)

    def _settle(self, op: SettleOp) -> None:
        """Settle it here as the store did."""
        try:
            self._store.apply(op)
        except UnavailableError:  # no room for its result
            self.drop(op.wire)
            return
        self._spare[op.wire] = None
        self._trim()

    def _put(self, wire: bytes, entry: Entry, expires: int, known: Entry | None) -> None:
        held = entry.state == "P" and entry.owner != NOBODY
        self._spare.pop(wire, None)
        if known is not None:
            self._store.drop(wire)  # so that there is room for it anew: its payload may be larger than before
        try:
            self._store.put(wire, entry, expires)
        except UnavailableError:
            if held:
                self.blind_until = max(self.blind_until, entry.until)
            return
        if not held:
            self._spare[wire] = None
            self._trim()
        elif entry.until < self._next_end:
            self._next_end = entry.until

    def _trim(self) -> None:
        """What expired has left the store without a word."""
        if len(self._spare) > 2 * len(self._store) + _SPARE_SLACK:
            self._spare = {wire: None for wire in self._spare if self._store.entry(wire) is not None}


def same(known: str, told: str) -> bool:
    """True where two states are one to a claimant: being waited for makes no difference."""
    return known == told or (known == "W" and told == "P")


def is_of(entry: Entry, op: SettleOp | ReleaseOp | RenewOp) -> bool:
    """True where the operation was about this record, not about one that its owner had before."""
    return entry.owner == op.owner and op.fence in (0, entry.fence)
