"""LocalLRU: go on with a store in this process, bounded, journalled, and say so on every answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..checks import check_count
from ..errors import UnavailableError
from ..events import Conflict, Unreplayed
from ..model import Outcome
from ..protocol.keyspace import names_of
from ..protocol.operations import (
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
    Stored,
    TransitionOp,
    Verdict,
)
from ..stores.memory import Entry, MemoryStore, stored
from .adoption import Former, mark, removal, report, text_of
from .base import LineOp
from .journal import Journal, JournalLine
from .last_seen import LastSeen


class LocalLRU:
    """Answer from this process's memory while the store is unavailable; each answer has `degraded=True`.

    Unique within this process only: two processes that degrade at once may both acquire a key. What
    this process knows of the store's records it takes into account: claims that it holds there go on
    being held, and can be completed, failed and released; successes that it was told are replayed.
    When the store is back, what was made or changed meanwhile is put there, with the same owners and
    fences; until that is done, new claims of those keys are answered from here. Where the store has
    another owner's record by then, a `Conflict` event names both, and which one stands.

    Refused (UnavailableError), as only the store can know: renewing a claim made there, tokens issued
    there, `get` and `forget` of what stands there. What is forgotten here is removed there when the store
    is back, unless somebody else has the key by then. A machine goes on from the state last seen here, else
    from its initial one. Full, it drops what the store has too, and then refuses new keys rather than
    forget an unexpired claim.

    Scopes may share one, and so may gates of one event loop over the same Redis: then it is unique in all
    of them. Not gates over different ones: its journal does not know which record belongs where.

    Args:
        maxsize: records held at most.
        max_bytes: estimate of the memory they may take.
        clock: seconds since 1970; for tests. By default the system's setting its time has no effect.
    """

    def __init__(
        self,
        maxsize: int = 100_000,
        *,
        max_bytes: int = 64 * 1024 * 1024,
        clock: Callable[[], float] | None = None,
    ) -> None:
        check_count(maxsize, "maxsize")
        check_count(max_bytes, "max_bytes")
        self._maxsize = maxsize
        self._journal = Journal()
        self._store = MemoryStore(
            maxsize=maxsize, max_bytes=max_bytes, clock=clock, make_room=lambda: self._mirror.drop_oldest()
        )
        self._mirror = LastSeen(self._store, pinned=lambda wire: self._journal.get(wire) is not None)

    def __repr__(self) -> str:
        return f"LocalLRU(maxsize={self._maxsize})"

    # In place of the store

    def answer(self, op: Op, error: UnavailableError) -> Reply:
        """Answer from memory. What only the store can know is refused, not guessed."""
        now = self._store.now()
        entry, line = self._store.entry(op.wire), self._journal.get(op.wire)
        self._check(op, entry, line, now, error)
        former = Former(entry)
        reply = self._store.apply(op)
        if isinstance(reply, Verdict | Moved):
            reply.degraded = True
        if entry is not None:
            self._bind(op, entry, line, former, reply, now)
        self._mirror.used(op.wire)
        self._note(op, former)
        return reply

    def holds(self, wire: bytes) -> bool:
        """True for a key that was changed while degraded, until the store has adopted that."""
        line = self._journal.lines.get(wire)
        if line is None:
            return False
        if self._store.holds(wire) or line.forgotten:
            return True
        self._journal.strike(wire)  # expired, here as it would have there
        return False

    def _check(
        self, op: Op, entry: Entry | None, line: JournalLine | None, now: int, error: UnavailableError
    ) -> None:
        """Raise where only the store can answer."""
        if line is not None:
            if entry is None and not line.forgotten:
                # It expired since `holds` was asked, and the store may be there: the next try finds out.
                self._journal.strike(op.wire)
                raise UnavailableError("the record of this key has just expired; try again", retry_after=0.0)
        elif entry is None:
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

    def _bind(
        self, op: Op, entry: Entry, line: JournalLine | None, former: Former, reply: Reply, now: int
    ) -> None:
        """Hold a record to what the store holds, or may hold."""
        present = self._store.entry(op.wire)
        if present is entry and line is None and isinstance(op, ClaimOp) and entry.state in "PW":
            # Its own claim again: told, but not prolonged, as the store knows nothing of that.
            entry.until = former.until
            if isinstance(reply, Verdict):
                reply.left_ms = min(reply.left_ms, entry.until - now)
        if present is not None and present.token and present.expires < former.expires:
            # The store may have it as issued, so it must be known as used for as long as it could be used there.
            present.until = max(present.until, former.expires) if present.state in "SF" else present.until
            self._store.keep(op.wire, present, former.expires)

    def _note(self, op: Op, former: Former) -> None:
        entry, line = self._store.entry(op.wire), self._journal.get(op.wire)
        if line is not None and former.owner and (entry is None or entry.owner != former.owner):
            line.gave_way(former.owner)
        if entry is None:
            self._gone(op.wire, line)
        elif mark(entry) != former.mark:
            self._mirror.pin(op.wire)
            self._journal.note(op.wire, getattr(op, "key", "") or names_of(op.wire)[1], former.owner or None)
            self._journal.sweep(len(self._store), self._stands)

    def _stands(self, wire: bytes) -> bool:
        return self._store.entry(wire) is not None

    def _gone(self, wire: bytes, line: JournalLine | None) -> None:
        """Forgotten here. Where the store has, or may have, an earlier state of it, that must go too."""
        if line is not None and (line.forgotten or line.may_be_stored):
            line.forgotten = True
        else:
            self._journal.strike(wire)

    # Beside the store

    def saw(self, op: Op, reply: Reply) -> None:
        """Keep in mind what the store says of a key, unless a line about it is still to be adopted there."""
        if op.wire not in self._journal.lines or self._was_under_way(op, reply):
            self._mirror.saw(op, reply)

    def _was_under_way(self, op: Op, reply: Reply) -> bool:
        """A claim was granted that was under way when the line began; True where it makes the line void."""
        if type(reply) is not Verdict or reply.outcome is not Outcome.ACQUIRED:
            return False
        now, entry, line = self._store.now(), self._store.entry(op.wire), self._journal.lines[op.wire]
        live = entry is not None and entry.state in "PW" and entry.until > now
        if entry is not None and (live or entry.state in "SFM"):
            if isinstance(op, ClaimOp) and op.owner != entry.owner:
                line.gave_way(op.owner)  # its caller is told of the one here, so nobody holds it there
            elif live:
                # The same owner twice: the longer lease holds.
                entry.until = max(entry.until, now + reply.left_ms)
            return False
        self._journal.strike(op.wire)
        return True

    # Into the store

    @property
    def lines(self) -> int:
        """Records that the store has yet to adopt."""
        return len(self._journal)

    def next_lines(self, most: int) -> Sequence[LineOp]:
        """Take the next records for the store; those that have expired are struck off."""
        now = self._store.now()
        ops: list[LineOp] = []
        while len(ops) < most and self._journal.waiting:
            for wire, line in self._journal.take(most - len(ops)):
                op = self._sent(wire, line, now)
                if op is None:
                    self._journal.strike(wire)
                else:
                    ops.append(op)
        return ops

    def _sent(self, wire: bytes, line: JournalLine, now: int) -> LineOp | None:
        if line.forgotten:
            return removal(wire, line.found)
        entry = self._store.entry(wire)
        if entry is None:
            return None
        line.sent = mark(entry)
        return AdoptOp(wire, stored(entry, now), line.base)

    def adopted(self, line: LineOp, reply: Adopted | Stored | Code) -> Conflict | Unreplayed | None:
        """The store has judged a record; what was changed here since it was sent goes again."""
        self._store.now()
        noted = self._journal.get(line.wire)
        if isinstance(reply, Stored) or not isinstance(line, AdoptOp) or (noted and noted.found):
            self._looked(noted, reply)
            return None
        code, theirs = (reply.code, reply.owner) if isinstance(reply, Adopted) else (reply, b"")
        familiar = noted is not None and noted.knows(theirs)
        if familiar and theirs not in (line.base, line.record.owner) and code is not Code.OVERRULED:
            # One of ours, who gave way here: how it got there, a lost reply did not say.
            self._journal.again(line.wire, base=theirs)
            return None
        self._judged(line, noted, stands=code in (Code.OK, Code.OVERRULED, Code.UNCONFIRMED))
        if familiar and code is Code.OVERRULED:
            return None
        return report(line, noted.key if noted else names_of(line.wire)[1], code, theirs)

    def _judged(self, line: AdoptOp, noted: JournalLine | None, *, stands: bool) -> None:
        if noted is None:
            return  # expired, or taken over by the store: what is held here by now was seen since
        entry = self._store.entry(line.wire)
        if noted.forgotten or (entry is not None and mark(entry) != noted.sent):
            self._journal.again(line.wire, base=line.record.owner if stands else None)
            return
        self._journal.strike(line.wire)
        self._mirror.keep(line.wire, entry) if stands else self._mirror.drop(line.wire)

    def _looked(self, noted: JournalLine | None, reply: object) -> None:
        """The store has shown what it has of a forgotten key, or that has been removed."""
        if noted is None:
            return
        if noted.found is None and isinstance(reply, Stored) and noted.knows(reply.owner):
            noted.found = reply
            self._journal.again(noted.wire)
        else:
            self._forgotten(noted)

    def put_back(self, line: LineOp, *, asked: bool) -> Unreplayed | None:
        """It is still to be adopted. Removing is not tried twice: it might hit the record of the next owner."""
        noted = self._journal.get(line.wire)
        if noted is None:
            return None
        if isinstance(line, ForgetOp) and asked:
            self._forgotten(noted)
            namespace, key = names_of(line.wire)
            return Unreplayed(namespace, key, "", "whether the store has forgotten it is unknown")
        if isinstance(line, AdoptOp) and asked and noted.found is None:
            noted.asked = True
            entry = self._store.entry(line.wire)
            if entry is None or entry.owner != line.record.owner:
                noted.gave_way(line.record.owner)
        noted.found = None
        self._journal.again(line.wire)
        return None

    def _forgotten(self, line: JournalLine) -> None:
        if self._store.entry(line.wire) is None:
            self._journal.strike(line.wire)
            return
        line.forgotten, line.found, line.base = False, None, None
        self._journal.again(line.wire)

    def give_up(self) -> Sequence[Unreplayed]:
        """Report what the store never got."""
        now = self._store.now()
        left = []
        for wire, line in self._journal.all():
            entry = self._store.entry(wire)
            if line.forgotten or (entry is not None and (entry.state in "SFIM" or entry.until > now)):
                owner = "" if entry is None else text_of(entry.owner)
                left.append(
                    Unreplayed(names_of(wire)[0], line.key, owner, "closed before the store was back")
                )
        return left


def makes_a_record(op: Op) -> bool:
    """True for what may begin in this process: a claim, a token's issue, a machine's first transition."""
    if isinstance(op, ClaimOp):
        return op.terms.mode is Mode.CLAIM
    return isinstance(op, IssueOp | TransitionOp)
