"""LocalLRU: go on with a store in this process, bounded, journalled, and say so on every answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ..checks import check_count
from ..errors import UnavailableError
from ..events import Conflict, Unreplayed
from ..keys import names_of
from ..owners import owner_text
from ..stores.base import (
    Adopted,
    AdoptOp,
    ClaimOp,
    Code,
    ForgetOp,
    IssueOp,
    Mode,
    Moved,
    Op,
    Reply,
    SettleOp,
    TransitionOp,
    Verdict,
)
from ..stores.memory import Entry, MemoryStore, stored
from .journal import Journal, Line
from .mirror import Mirror


class LocalLRU:
    """Answer from this process's memory while the store is unavailable; each answer has `degraded=True`.

    Unique within this process only: two processes that degrade at once may both acquire a key. What
    this process knows of the store's records it takes into account: claims that it holds there go on
    being held, and can be completed, failed and released; successes that it was told are replayed.
    When the store is back, what was made or changed meanwhile is put there, with the same owners and
    fences; until that is done, new claims of those keys are answered from here. Where the store has
    another owner's record by then, a `Conflict` event names both, and which one stands.

    Refused (UnavailableError), as only the store can know: renewing a claim made there, tokens issued
    there, `get` and `forget` of what stands there. A machine goes on from the state last seen here, else
    from its initial one. Full, it drops what the store has too, and then refuses new keys rather than
    forget an unexpired claim.

    Args:
        maxsize: records held at most.
        max_bytes: estimate of the memory they may take.
        clock: seconds since 1970; for tests.
    """

    def __init__(
        self,
        maxsize: int = 100_000,
        *,
        max_bytes: int = 64 * 1024 * 1024,
        clock: Callable[[], float] = time.time,
    ) -> None:
        check_count(maxsize, "maxsize")
        check_count(max_bytes, "max_bytes")
        self._maxsize = maxsize
        self._journal = Journal()
        self._store = MemoryStore(
            maxsize=maxsize, max_bytes=max_bytes, clock=clock, make_room=lambda: self._mirror.drop_oldest()
        )
        self._mirror = Mirror(self._store)

    def __repr__(self) -> str:
        return f"LocalLRU(maxsize={self._maxsize})"

    # In place of the store

    def answer(self, op: Op, error: UnavailableError) -> Reply:
        """Answer from memory. What only the store can know is refused, not guessed."""
        now = self._store.now()
        entry, line = self._store.entry(op.wire), self._journal.get(op.wire)
        self._check(op, entry, line, now, error)
        before, base = mark(entry), entry.owner if entry else None
        reply = self._store.apply(op)
        if isinstance(reply, Verdict | Moved):
            reply.degraded = True
        self._mirror.used(op.wire)
        self._note(op, before, base or None)
        return reply

    def holds(self, wire: bytes) -> bool:
        """True for a key that was changed while degraded, until the store has adopted that."""
        line = self._journal.get(wire)
        if line is None:
            return False
        if self._store.holds(wire) or line.forgotten:
            return True
        self._journal.strike(wire)  # expired, here as it would have there
        return False

    def _check(
        self, op: Op, entry: Entry | None, line: Line | None, now: int, error: UnavailableError
    ) -> None:
        """Raise where only the store can answer."""
        if line is not None:
            return
        if entry is None:
            if not makes_a_record(op):
                raise error
            if now < self._mirror.blind_until:
                raise UnavailableError(
                    f"more claims are live than {self!r} can hold: whether this one is, is unknown"
                )
        elif not isinstance(op, ClaimOp | TransitionOp) and not self._settles_what_it_holds(op, entry, now):
            raise error

    def _settles_what_it_holds(self, op: Op, entry: Entry, now: int) -> bool:
        """A claim made in the store can be settled here while its lease lasts: then nobody else has it."""
        settles = isinstance(op, SettleOp) or op.verb == "release"
        return settles and entry.owner != b"" and entry.until > now

    def _note(self, op: Op, before: object, base: bytes | None) -> None:
        entry = self._store.entry(op.wire)
        if entry is None:
            self._gone(op.wire)
        elif mark(entry) != before:
            self._mirror.pin(op.wire)
            self._journal.note(op.wire, getattr(op, "key", "") or names_of(op.wire)[1], base)

    def _gone(self, wire: bytes) -> None:
        """Forgotten here. Where the store has an earlier state of it, or is just being sent one, that must go too."""
        line = self._journal.get(wire)
        if line is not None and (line.forgotten or line.base is not None or line.sent is not None):
            line.forgotten = True
        else:
            self._journal.strike(wire)

    # Beside the store

    def saw(self, op: Op, reply: Reply) -> None:
        """Keep in mind what the store says of a key, unless a line about it is still to be adopted there."""
        if self._journal.get(op.wire) is None:
            self._mirror.saw(op, reply)

    # Into the store

    @property
    def lines(self) -> int:
        """Records that the store has yet to adopt."""
        return len(self._journal)

    def next_lines(self, most: int) -> Sequence[AdoptOp | ForgetOp]:
        """Take the next records for the store; those that have expired are struck off."""
        now = self._store.now()
        ops: list[AdoptOp | ForgetOp] = []
        for wire, line in self._journal.take(most):
            entry = self._store.entry(wire)
            if line.forgotten:
                ops.append(ForgetOp(wire))
            elif entry is None:
                self._journal.strike(wire)
            else:
                line.sent = mark(entry)
                ops.append(AdoptOp(wire, stored(entry, now), line.base))
        return ops

    def adopted(self, line: AdoptOp | ForgetOp, reply: Adopted | Code) -> Conflict | Unreplayed | None:
        """The store has judged a record; what was changed here since it was sent goes again."""
        self._store.now()
        if isinstance(line, ForgetOp):
            self._forgotten(line.wire)
            return None
        noted, entry = self._journal.get(line.wire), self._store.entry(line.wire)
        code = reply.code if isinstance(reply, Adopted) else reply
        key = noted.key if noted else names_of(line.wire)[1]
        ours_stands = code in (Code.OK, Code.OVERRULED, Code.UNCONFIRMED)
        if noted is not None and (noted.forgotten or (entry is not None and mark(entry) != noted.sent)):
            self._journal.again(line.wire, base=line.record.owner if ours_stands else None)
        else:
            self._journal.strike(line.wire)
            self._mirror.keep(line.wire, entry) if ours_stands else self._mirror.drop(line.wire)
        return report(line, key, code, reply.owner if isinstance(reply, Adopted) else b"")

    def put_back(self, line: AdoptOp | ForgetOp, *, asked: bool) -> Unreplayed | None:
        """It is still to be adopted. Forgetting is not tried twice: it might hit the record of the next owner."""
        if isinstance(line, ForgetOp) and asked:
            self._forgotten(line.wire)
            namespace, key = names_of(line.wire)
            return Unreplayed(namespace, key, "", "whether the store has forgotten it is unknown")
        self._journal.again(line.wire)
        return None

    def _forgotten(self, wire: bytes) -> None:
        line = self._journal.get(wire)
        if line is None or self._store.entry(wire) is None:
            self._journal.strike(wire)
            return
        line.forgotten, line.base = False, None
        self._journal.again(wire)

    def give_up(self) -> Sequence[Unreplayed]:
        """Report what the store never got."""
        now = self._store.now()
        left = []
        for wire, line in self._journal.all():
            entry = self._store.entry(wire)
            if entry is not None and (entry.state in "SFIM" or entry.until > now):
                reason = "closed before the store was back"
                left.append(Unreplayed(names_of(wire)[0], line.key, text_of(entry.owner), reason))
        return left


def makes_a_record(op: Op) -> bool:
    """True for what may begin in this process: a claim, a token's issue, a machine's first transition."""
    if isinstance(op, ClaimOp):
        return op.terms.mode is Mode.CLAIM
    return isinstance(op, IssueOp | TransitionOp)


def mark(entry: Entry | None) -> object:
    """Return what tells two states of a record apart. Being waited for is none: the store need not know."""
    if entry is None:
        return None
    state = "P" if entry.state == "W" else entry.state
    return state, entry.owner, entry.fence, entry.until, entry.payload


def report(line: AdoptOp, key: str, code: Code, theirs: bytes) -> Conflict | Unreplayed | None:
    """Return the event for a line that was not simply adopted."""
    namespace, ours = names_of(line.wire)[0], text_of(line.record.owner)
    if code is Code.FOREIGN:
        return Unreplayed(namespace, key, ours, "the store holds a value that fastdedup did not write")
    if code in (Code.OUTRANKED, Code.OVERRULED):
        kept = "theirs" if code is Code.OUTRANKED else "ours"
        return Conflict(namespace, key, ours, text_of(theirs), kept)
    return None


def text_of(owner: bytes) -> str:
    """Return an owner's text; of a machine, whose owner is its last change, that in hexadecimal."""
    if not owner:
        return ""
    return owner_text(owner) if owner[0] in (0, len(owner) - 1) else owner.hex()
