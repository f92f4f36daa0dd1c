"""What this process knows of the store's records, kept beside those that a fallback makes itself.

So that in an outage a claim that this process holds in the store is not given to another caller
here, can be settled, and a success that was told goes on being told. Never consulted while the
store answers. Claims that are held stay until their lease ends; all else may go, the oldest first.
"""

from __future__ import annotations

from ..errors import UnavailableError
from ..model import Outcome
from ..stores.base import (
    ClaimOp,
    Code,
    ForgetOp,
    Mode,
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
    Outcome.ACQUIRED: "P",
    Outcome.IN_PROGRESS: "P",
    Outcome.SUCCEEDED: "S",
    Outcome.FAILED: "F",
}
_SPARE_SLACK = 1024


class Mirror:
    """Writes into a memory store what was seen of another store."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        # Mutable: what may go, the longest unused first; until when a live claim may be missing here.
        self._spare: dict[bytes, None] = {}
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
        elif reply in (Code.OK, Code.UNCONFIRMED, Code.ABSENT):
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
        if entry is None or entry.state in "IR" or (entry.state in "PW" and entry.until <= self._store.now()):
            self.drop(wire)
        elif entry.state in "PW":
            self._store.keep(wire, entry, entry.until)
        else:
            self._spare[wire] = None

    def drop(self, wire: bytes) -> None:
        """Forget a record."""
        self._spare.pop(wire, None)
        self._store.drop(wire)

    def drop_oldest(self) -> bool:
        """Make room; False where nothing may go."""
        while self._spare:
            wire = next(iter(self._spare))
            held = self._store.entry(wire) is not None
            self.drop(wire)
            if held:
                return True
        return False

    def _saw_claim(self, op: ClaimOp, verdict: Verdict) -> None:
        state = _STATES.get(verdict.outcome)
        if state is None:
            return
        acquired = verdict.outcome is Outcome.ACQUIRED
        if acquired and op.terms.consumes:
            state = "S"
        known = self._store.entry(op.wire)
        if known is not None and not acquired and (known.state, known.fence) == (state, verdict.fence):
            self.used(op.wire)
            return
        owner = op.owner if acquired else NOBODY
        until = self._store.now() + verdict.left_ms
        entry = Entry(state, owner, verdict.fence, verdict.attempt, until, 0)
        entry.fingerprint = op.fingerprint
        entry.payload = verdict.payload
        entry.token = op.terms.mode is not Mode.CLAIM
        self._put(op.wire, entry, until)

    def _saw_machine(self, op: TransitionOp, moved: Moved) -> None:
        changed = moved.code is Code.OK
        entry = Entry("M", op.change if changed else NOBODY, moved.version, 0, 0, 0)
        entry.payload = moved.state.encode()
        self._put(op.wire, entry, self._store.now() + op.keep_ms)

    def _saw_change(self, op: Op) -> None:
        now = self._store.now()
        entry = self._store.entry(op.wire)
        if isinstance(op, ForgetOp):
            self.drop(op.wire)
        elif entry is None or entry.owner != getattr(op, "owner", NOBODY):
            return
        elif isinstance(op, SettleOp):
            until = now + op.keep_ms
            settled = Entry("S" if op.succeeded else "F", op.owner, entry.fence, entry.attempt, until, 0)
            settled.fingerprint, settled.payload, settled.token = entry.fingerprint, op.payload, entry.token
            self._put(op.wire, settled, until)
        elif isinstance(op, ReleaseOp):
            self.drop(op.wire)
        elif isinstance(op, RenewOp):
            entry.until = now + op.lease_ms
            self._store.keep(op.wire, entry, entry.until)

    def _put(self, wire: bytes, entry: Entry, until: int) -> None:
        held = entry.state == "P" and entry.owner != NOBODY
        self._spare.pop(wire, None)
        try:
            self._store.put(wire, entry, until)
        except UnavailableError:
            self._store.drop(wire)
            if held:
                self.blind_until = max(self.blind_until, until)
            return
        if not held:
            self._spare[wire] = None
            self._trim()

    def _trim(self) -> None:
        """What expired has left the store without a word."""
        if len(self._spare) > 2 * len(self._store) + _SPARE_SLACK:
            self._spare = {wire: None for wire in self._spare if self._store.entry(wire) is not None}
