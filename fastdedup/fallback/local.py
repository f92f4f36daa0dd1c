"""LocalLRU: answers from a bounded store in this process, marks every answer, and keeps a journal for the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, cast

from ..checks import check_count, shown
from ..errors import ConfigError, UnavailableError
from ..events import Conflict, Unreplayed
from ..forking import InChild
from ..kernel.codes import Code
from ..kernel.keyspace import names_of
from ..kernel.operations import AdoptOp, ClaimOp, ForgetOp, Op, Reply, TransitionOp, Verdict, was_accepted
from ..kernel.records import Holding, Stored
from ..kernel.replies import Adopted, StoredForm, TransitionReply
from ..kernel.terms import Mode
from ..kernel.verbs import Effect, Verb
from ..ledger.operations import IdOp, LedgerOp, LedgerPlace
from ..model import Outcome
from ..stores.entry import Entry, is_held, stored
from ..stores.memory import MemoryStore
from .adoption import Former, holding_of, mark, removal, report, text_of
from .base import JournalOp, OneLoopPolicy
from .id_line import IdLine
from .journal import NEW, Journal, JournalLine
from .last_seen import NOBODY, LastSeen, SeenEntry
from .local_ids import LedgerOps, LocalIds
from .remembered_claims import ClaimOrSettleOp, RememberedClaims

_MAKING: Final = tuple(verb for verb in Verb if verb.row.grants or verb.row.effect is Effect.MAKES)
_OF_LEDGER: Final = frozenset(verb for verb in Verb if verb.row.of_ledger)


class LocalLRU(OneLoopPolicy):
    """Answers from this process's memory while the store is unavailable; each answer has `degraded=True`.

    A key is unique within this process only: two processes that lose the store at once may both acquire it.
    The policy uses the store's records that this process has seen. A claim that this process
    holds in the store is still held, and can be completed, failed and released. A success that the store reported is
    repeated; not a token's use without a result, which may still be undone. When the store is back, it gets the
    records that were made or changed meanwhile, with the same owners and fences; until then new claims of those keys
    are answered from here. If the store has another acquisition's record by then, a `Conflict` event names both
    owners, and says which record remains.

    The policy refuses (UnavailableError) operations that need the store's knowledge: renewing a claim made there,
    tokens issued there, `get` and `forget` of its records. A key that is forgotten here is removed from the store
    when that is back, unless another owner has the key by then. A machine goes on from the state that this process
    saw last, or from its initial state. A full policy drops records that the store has too. Then it refuses new keys,
    because it does not forget an unexpired claim.

    The policy knows the ids of a ledger that the store has lately reported. Other ids are new here. They are
    remembered, written into the store when it is back, and kept there for a window from then. If the store has such
    an id from another call by then, that is a `Conflict`. An id that is forgotten here is removed from the store,
    even if another process put it there. A ledger that this process never opened before is created here, and its ids
    are written into the store's ledger.

    A claim whose success a ledger remembers is answered from its record here, or else from its id. When the store is
    back, it is asked for the id first. If another call's success is there by then, that is a `Conflict`, and
    the claim is lost.

    Several namespaces may share one policy, and so may several gates in one event loop over the same Redis: then
    a key is unique in all of them. While one of them is open, opening another one in a second event loop is a
    UsageError. Gates over different servers must not share a policy: its journal does not
    know which record belongs to which server. In a forked child it begins anew.

    Args:
        maxsize: the largest number of records and ids.
        max_bytes: an estimate of the memory that they may take.
        clock: returns seconds since 1970; for tests. The default clock does not change when the system's time is set.
    """

    def __init__(
        self,
        maxsize: int = 100_000,
        *,
        max_bytes: int = 64 * 1024 * 1024,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__()
        check_count(maxsize, "maxsize")
        check_count(max_bytes, "max_bytes")
        if clock is not None and not callable(clock):
            raise ConfigError(f"clock must be a function that returns seconds since 1970, got {shown(clock)}")
        self._maxsize = maxsize
        self._max_bytes = max_bytes
        self.begin_anew(clock)
        # Its parent writes the records into the store. Written by the child too, later, they would bring back claims
        # that were released since, and remove ids that another call has remembered since.
        self._in_child = InChild(partial(self.begin_anew, clock))

    def begin_anew(self, clock: Callable[[], float] | None = None) -> None:
        """Forget everything, and use this clock."""
        self._journal = Journal()
        self.records = MemoryStore(
            maxsize=self._maxsize, max_bytes=self._max_bytes, clock=clock, make_room=self._drop_oldest
        )
        """The records that it has made, or that the store has reported. For tests and figures: only read them."""
        self.last_seen = LastSeen(self.records, pinned=lambda wire: self._journal.get(wire) is not None)
        """The `records` that the store has too, so that they may be dropped. Only read it."""
        self.ids = LocalIds(self.records, self._journal)
        """The ids of ledgers, like `records`. Only read it."""
        self._remembered = RememberedClaims(self.records, self._journal, self.ids)

    def __repr__(self) -> str:
        return f"LocalLRU(maxsize={self._maxsize})"

    @contextmanager
    def apart(self, clock: Callable[[], float]) -> Iterator[None]:
        """Begin anew with a test's clock, and restore the former knowledge afterwards."""
        kept = self._journal, self.records, self.last_seen, self.ids, self._remembered
        self.begin_anew(clock)
        try:
            yield
        finally:
            self._journal, self.records, self.last_seen, self.ids, self._remembered = kept

    # In place of the store

    def answer(self, op: Op, error: UnavailableError) -> Reply:
        """Answer from memory, or raise `error` if only the store can know the answer."""
        if op.verb in _OF_LEDGER:
            return self._answer_ledger(cast(LedgerOps, op), error)
        if (place := op.remembering) is not None:
            found = cast(LedgerPlace, place)
            return self._remembered.answer(cast(ClaimOrSettleOp, op), found, error, self._answer_record)
        return self._answer_record(op, error, self.records.apply)

    def _answer_record(self, op: Op, error: UnavailableError, apply: Callable[[Any], Reply]) -> Reply:
        now = self.records.now()
        entry, line = self.records.entry(op.wire), self._journal.get(op.wire)
        self._check(op, entry, line, now, error)
        former = Former(entry)
        reply = apply(op)
        if isinstance(reply, Verdict | TransitionReply):
            reply.degraded = True
        if entry is not None:
            self._bind(op, entry, line, former, reply, now)
        self.last_seen.used(op.wire)
        self._note(op, former)
        return reply

    def _answer_ledger(self, op: LedgerOps, error: UnavailableError) -> Reply:
        reply = self.ids.answer(op, error)
        self._journal.sweep(len(self.records) + len(self.records.ledgers), self._stands)
        return reply

    def _drop_oldest(self) -> bool:
        """Make room: an id is dropped before a record, because a record says more and its loss costs more."""
        return self.ids.drop_oldest() or self.last_seen.drop_oldest()

    def holds_id(self, op: IdOp) -> bool:
        """True for an id that was remembered or forgotten in the outage, until the store knows that."""
        return self.ids.holds(op)

    def holds(self, wire: bytes) -> bool:
        """True for a key that was changed in the outage, until the store has adopted the change."""
        line = self._journal.lines.get(wire)
        if line is None:
            return False
        if self.records.holds(wire) or line.forgotten:
            return True
        self._journal.strike(wire)  # it expired here, and would have expired there too
        return False

    def _check(
        self, op: Op, entry: Entry | None, line: JournalLine | None, now: int, error: UnavailableError
    ) -> None:
        """Raise if only the store can answer."""
        if line is not None:
            if entry is None and not line.forgotten:
                # The record expired since `holds` was called, and the store may be back: the next call asks it.
                self._journal.strike(op.wire)
                raise UnavailableError(
                    "the record of this key has just expired; try again at once", retry_after=0.0
                )
        elif entry is None:
            if not makes_a_record(op):
                raise error
            if now < self.last_seen.blind_until:
                raise UnavailableError(
                    f"the store has more live claims than {self!r} can hold, and this key may be one of them; "
                    "raise maxsize, or try again when the store is back"
                )
        elif not op.verb.row.grants and not self._settles_what_it_holds(op, entry, now):
            raise error
        elif isinstance(op, ClaimOp) and op.fingerprint and not entry.fingerprint and entry.owner == NOBODY:
            raise error  # the claim that got this record named no fingerprint, so only the store knows its own

    def _settles_what_it_holds(self, op: Op, entry: Entry, now: int) -> bool:
        """True for a settlement of a claim from the store, within its lease: then no other owner can hold the key."""
        return op.verb.row.effect is Effect.FREES and entry.owner != NOBODY and entry.until > now

    def _bind(
        self, op: Op, entry: Entry, line: JournalLine | None, former: Former, reply: Reply, now: int
    ) -> None:
        """Keep a record within the limits of the store's record: its lease, and a token's time."""
        present = self.records.entry(op.wire)
        if present is entry and line is None and isinstance(op, ClaimOp) and entry.state in "PW":
            # The owner gets its own claim back with the former lease, because the store does not know of a longer
            # one.
            entry.until = former.until
            if isinstance(reply, Verdict):
                reply.left_ms = min(reply.left_ms, entry.until - now)
        if present is not None and present.token and present.expires < former.expires:
            # The store may have the token as issued, so its use is remembered for as long as it is valid there.
            present.until = max(present.until, former.expires) if present.state in "SF" else present.until
            self.records.keep(op.wire, present, former.expires)

    def _note(self, op: Op, former: Former) -> None:
        entry, line = self.records.entry(op.wire), self._journal.get(op.wire)
        if line is not None and former.holding and (entry is None or entry.owner != former.holding.owner):
            line.gave_way(former.holding)
        if entry is None:
            self._gone(op.wire, line)
        elif mark(entry) != former.mark:
            self.last_seen.pin(op.wire)
            self._journal.note(op.wire, getattr(op, "key", "") or names_of(op.wire)[1], former.holding)
            self._journal.sweep(len(self.records), self._stands)
            if isinstance(entry, SeenEntry):  # a ledger may know its id before the record may be sent
                self.ids.let_wait(op.wire, entry.seen)
        if entry is not None and isinstance(op, ClaimOp) and entry.owner != op.owner and was_accepted(op):
            line = self._journal.get(op.wire)
            if line is not None:  # the store may have given the key to this claimant all the same
                line.got_no_reply(op.owner)

    def _stands(self, wire: bytes) -> bool:
        line = self._journal.get(wire)
        return self.ids.stands(line) if isinstance(line, IdLine) else self.records.entry(wire) is not None

    def _gone(self, wire: bytes, line: JournalLine | None) -> None:
        """Note that a key was forgotten: if the store may have a record of it, that must be removed too."""
        if line is not None and (line.forgotten or line.may_be_stored):
            line.forgotten = True
        else:
            self._journal.strike(wire)

    # Beside the store

    def hear_time(self, time_us: int) -> None:
        """Give fences by the store's clock: this process's clock may be ahead, and its fences not be adopted."""
        self.records.hear_time(time_us)

    def saw(self, op: Op, reply: Reply) -> None:
        """Remember the store's answer about a key, unless a journal line shows that this process knows better."""
        if op.verb in _OF_LEDGER:
            self.ids.saw(cast(LedgerOps, op), reply)
        elif op.wire not in self._journal.lines or self._was_under_way(op, reply):
            self.last_seen.saw(op, reply)
            if (place := op.remembering) is not None:
                self._remembered.saw(cast(LedgerPlace, place), reply)

    def _was_under_way(self, op: Op, reply: Reply) -> bool:
        """Handle the reply to an operation that was under way when the line began; True if the line is void."""
        if isinstance(op, TransitionOp):
            return self._moved_under_way(op, reply)
        if type(reply) is not Verdict or reply.outcome is not Outcome.ACQUIRED:
            return False
        now, entry, line = self.records.now(), self.records.entry(op.wire), self._journal.lines[op.wire]
        live = entry is not None and is_held(entry, now)
        if entry is not None and (live or entry.state in "SFM"):
            if isinstance(op, ClaimOp) and op.owner != entry.owner:
                # Its caller gets the record from here, so no owner holds the key there.
                line.gave_way(Holding(op.owner, reply.fence))
            elif live:
                # One owner has the key here and there: the longer lease counts.
                entry.until = max(entry.until, now + reply.left_ms)
            return False
        self._journal.strike(op.wire)
        return True

    def _moved_under_way(self, op: TransitionOp, reply: Reply) -> bool:
        """Let the store's change give way, because its caller gets the answer of the machine here."""
        if isinstance(reply, TransitionReply) and reply.code is not Code.UNSURE:
            op.resent = False  # the store has reported its effect
        if not isinstance(reply, TransitionReply) or reply.code is not Code.OK:
            return False
        if self.records.now() and self.records.entry(op.wire) is None:
            self._journal.strike(op.wire)
            return True
        self._journal.lines[op.wire].gave_way(Holding(op.change, reply.version))
        return False

    def note_orphan(self, wire: bytes, owner: bytes) -> None:
        """Let the claim of a cancelled caller give way: if it holds the key in the store, no caller uses it."""
        self.ids.note_orphan(wire, owner)
        line, entry = self._journal.get(wire), self.records.entry(wire)
        if line is not None and (entry is None or entry.owner != owner):
            line.got_no_reply(owner)

    def took_back(self, op: IdOp) -> None:
        """Forget an id that a call has remembered here and that ends in an error."""
        self.ids.took_back(op)

    # Into the store

    @property
    def lines(self) -> int:
        """The number of keys whose records the store has yet to get."""
        return len(self._journal)

    def lanes(self, lane_of: Callable[[bytes], bytes]) -> Sequence[bytes]:
        """Sort the new lines into their lanes; return the names of the lanes that have lines."""
        self._journal.sort(lane_of)
        return self._journal.lanes

    def next_operations(self, most: int, lane: bytes = NEW) -> Sequence[JournalOp]:
        """Return operations for the oldest lines of a lane, about `most`; strike the lines of expired records."""
        now = self.records.now()
        ops: list[JournalOp] = []
        forms: dict[bytes, LedgerOp] = {}
        while not forms and len(ops) < most and (lines := self._journal.take(most - len(ops), lane)):
            for wire, line in lines:
                if line.id_line is not None and self.records.entry(wire) is not None:
                    continue  # it stays taken until its id's line is settled, and is then sent
                sent = self._sent(wire, line, now, max(1, most - len(ops) - len(lines)))
                if not sent:
                    self._journal.strike(wire)
                elif isinstance(op := sent[0], LedgerOp):  # the form is read first, and the id waits for that
                    forms.setdefault(op.wire, op)
                    self._journal.again(wire)
                else:
                    ops += sent
        return [*forms.values(), *ops]

    def _sent(self, wire: bytes, line: JournalLine, now: int, most: int) -> Sequence[JournalOp]:
        if isinstance(line, IdLine):
            return self.ids.next_operations(line, now, most)
        if line.forgotten:
            return [removal(wire, line.found)]
        entry = self.records.entry(wire)
        if entry is None:
            return []
        line.sent = mark(entry), entry.expires
        record = stored(entry, now)
        if line.echo_ms and entry.state == "S":
            record.left_ms = record.ttl_ms = max(record.left_ms, line.echo_ms)
        return [AdoptOp(wire, record, line.base)]

    def adopted(
        self, op: JournalOp, reply: Adopted | Stored | StoredForm | Code
    ) -> Conflict | Unreplayed | None:
        """Take the store's reply. A record that was changed here since it was sent is sent again."""
        self.records.now()
        if isinstance(op, LedgerOp | IdOp):
            return self.ids.adopted(op, reply)
        if isinstance(reply, StoredForm):
            return None
        line = self._journal.get(op.wire)
        if isinstance(reply, Stored) or not isinstance(op, AdoptOp) or (line and line.found):
            self._looked(line, reply)
            return None
        adopted = reply if isinstance(reply, Adopted) else Adopted(reply, b"", 0)
        code, theirs = adopted.code, holding_of(adopted)
        familiar = line is not None and line.knows(theirs, settled=adopted.settled)
        if familiar and theirs not in (op.base, holding_of(op.record)) and code is not Code.OURS_STANDS:
            # A holding of this process that gave way here: a call whose reply was lost has written it into the store.
            self._journal.again(op.wire, base=theirs)
            return None
        self._judged(op, line, stands=code in (Code.OK, Code.OURS_STANDS, Code.UNCONFIRMED))
        if familiar and code is Code.OURS_STANDS:
            return None
        return report(op, line.key if line else names_of(op.wire)[1], code, theirs.owner)

    def _judged(self, op: AdoptOp, line: JournalLine | None, *, stands: bool) -> None:
        if line is None:
            return  # the record expired, or the store's record, which was seen since, replaced it
        entry = self.records.entry(op.wire)
        if line.forgotten or (entry is not None and (mark(entry), entry.expires) != line.sent):
            self._journal.again(op.wire, base=holding_of(op.record) if stands else None)
            return
        self._journal.strike(op.wire)
        if entry is not None and line.echo_ms and entry.state == "S":
            self.records.keep(op.wire, entry, self.records.now() + op.record.ttl_ms)
        self.last_seen.keep(op.wire, entry) if stands else self.last_seen.lost(op.wire, entry)

    def _looked(self, line: JournalLine | None, reply: object) -> None:
        """Take the store's record of a forgotten key, which is removed next, or the reply to its removal."""
        if line is None:
            return
        if (
            line.found is None
            and isinstance(reply, Stored)
            and line.knows(holding_of(reply), settled=reply.state in "SF")
        ):
            line.found = reply
            self._journal.again(line.wire)
        else:
            self._forgotten(line)

    def put_back(self, op: JournalOp, *, asked: bool, lane: bytes = NEW) -> Unreplayed | None:
        """Keep an operation for later. A removal is not sent twice: it might remove the next owner's record."""
        if isinstance(op, IdOp):
            return self.ids.put_back(op, asked=asked, lane=lane)
        line = self._journal.get(op.wire)
        if line is None:
            return None
        if isinstance(op, ForgetOp) and asked:
            self._forgotten(line)
            namespace, key = names_of(op.wire)
            return Unreplayed(namespace, key, "", "whether the store has forgotten it is unknown")
        if isinstance(op, AdoptOp) and asked and line.found is None:
            line.asked = True
            entry = self.records.entry(op.wire)
            if entry is None or entry.owner != op.record.owner:
                line.gave_way(holding_of(op.record))
        line.found = None
        self._journal.again(op.wire, lane=lane)
        return None

    def _forgotten(self, line: JournalLine) -> None:
        if self.records.entry(line.wire) is None:
            self._journal.strike(line.wire)
            return
        line.forgotten, line.found, line.base = False, None, None
        self._journal.again(line.wire)

    def give_up(self) -> Sequence[Unreplayed]:
        """Return an event for each record that the store never got."""
        now = self.records.now()
        left = []
        for wire, line in self._journal.all():
            if isinstance(line, IdLine):
                left += self.ids.give_up(line)
                continue
            entry = self.records.entry(wire)
            if line.forgotten or (entry is not None and (entry.state in "SFIM" or entry.until > now)):
                owner = "" if entry is None else text_of(entry.owner)
                left.append(
                    Unreplayed(names_of(wire)[0], line.key, owner, "closed before the store was back")
                )
        return left


def makes_a_record(op: Op) -> bool:
    """True for an operation that may make a record: a claim, a token's issue, a machine's first transition."""
    if isinstance(op, ClaimOp):
        return op.terms.mode is Mode.CLAIM
    return op.verb in _MAKING
