"""The ids of ledgers for `LocalLRU`: ids that the store lately reported, and ids that were remembered in an outage.

A journal line is for one id. When the store is back, the ledger's form is read first. If it is the form that
served here, the id is remembered by a `FirstOp` with the nonce of the call that got True; if the store has it for
another call of this process, that call's entry is removed, and the id sent again. If it is another one, because this
process created the ledger itself or the store lost it, each id first gets its place in the store's form. A forgotten
id is removed.

The store does not report the age of an id. So an id is known for a hundredth of the window
after the store has answered that it is a duplicate.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

from ..errors import UnavailableError
from ..events import Conflict, Unreplayed
from ..kernel.codes import Code
from ..kernel.granted import GRANTED
from ..kernel.keyspace import names_of
from ..kernel.operations import Reply, was_accepted
from ..kernel.replies import StoredForm
from ..ledger.forms import SLOTS, LedgerForm
from ..ledger.ids import NONCE_BYTES, ledger_of, same_call, without_patience
from ..ledger.operations import (
    FirstOp,
    ForgetIdOp,
    IdOp,
    LedgerOp,
    LedgerPlace,
    SeenOp,
    WeighOp,
)
from ..stores.memory import MemoryStore
from .base import JournalOp
from .id_line import IdLine, LocalLedger, line_bytes
from .journal import Journal, JournalLine

LedgerOps = LedgerOp | IdOp | WeighOp
_NEVER_MS = -(1 << 50)
"""The server's time of a form from the policy: a store refuses operations that rely on it."""
_RELY_MS = 30_000
"""Milliseconds for which a form that was read from the store is valid."""
_MOST_LEDGERS = 1000
_SLACK = 1024


class LocalIds:
    """Answers for ledgers from a memory store, and writes the remembered ids into a journal."""

    def __init__(self, store: MemoryStore, journal: Journal) -> None:
        self._store = store
        self._ids = store.ledgers
        self._journal = journal
        self.ledgers: dict[bytes, LocalLedger] = {}
        """The ledgers by the store keys of their forms, the longest unused first."""
        # Mutable: the ids that may be dropped, the longest unused first.
        self._spare: OrderedDict[bytes, tuple[bytes, bytes]] = OrderedDict()

    # In place of the store

    def answer(self, op: LedgerOps, error: UnavailableError) -> Reply:
        """Answer from memory."""
        now = self._store.now()
        if isinstance(op, LedgerOp):
            return self._form(op, error)
        ledger = self.ledgers.get(ledger_of(op.wire))
        if isinstance(op, WeighOp):
            if ledger is None:
                raise error
            return self._ids.answer(op, now)
        if isinstance(op, ForgetIdOp) and op.takes_back:
            self.note_orphan(op.wire, op.entry)
            self.took_back(op)
            raise error  # the store may have it, too
        if not op.id:
            raise error  # made by another program
        if isinstance(op, SeenOp) and op.terms.from_ms:
            return self._ids.answer(op, now)  # in the form of the ledger before its resizing
        if ledger is None or op.place != b"".join(ledger.addresses.find(op.id)):
            return Code.STALE  # its caller reads the form, and retries
        if isinstance(op, FirstOp):
            return self._first(op, ledger, now)
        if isinstance(op, ForgetIdOp):
            return self._forget(op, ledger, now)
        return self._ids.answer(op, now)

    def holds(self, op: IdOp) -> bool:
        """True for an id that was remembered or forgotten while degraded, until the store knows that."""
        line = self._journal.lines.get(op.place)
        if line is None:
            return False
        self._store.now()
        if self.stands(line):
            return True
        self._journal.strike(op.place)
        return False

    def stands(self, line: JournalLine) -> bool:
        """True while a line has an operation to send."""
        return isinstance(line, IdLine) and (
            line.forgotten or self._held(line) is not None or line.has_records
        )

    def _held(self, line: IdLine) -> tuple[int, bytes] | None:
        return self._ids.held(line.bucket, line.digest)

    def _form(self, op: LedgerOp, error: UnavailableError) -> Reply:
        ledger = self.ledgers.get(op.wire)
        if op.former:
            raise error  # only the store can replace a form
        if ledger is None:
            if not op.form and op.ttl_ms:
                return Code.ABSENT  # a caller that wants to create it retries with a form
            form = LedgerForm.read(op.form)
            if form is None:
                raise error
            ledger = self._keep(LocalLedger(op.wire, op.form, form, op.ttl_ms))
        return StoredForm(ledger.text, _NEVER_MS, degraded=True)

    def _keep(self, ledger: LocalLedger) -> LocalLedger:
        self.ledgers[ledger.wire] = ledger
        if len(self.ledgers) > _MOST_LEDGERS:
            needed = {line.ledger.wire for line in self._journal.lines.values() if isinstance(line, IdLine)}
            for wire in list(self.ledgers)[: -_MOST_LEDGERS // 2]:
                if wire not in needed:
                    del self.ledgers[wire]
        return ledger

    def _first(self, op: FirstOp, ledger: LocalLedger, now: int) -> Reply:
        place, digest = op.place, op.place[len(op.wire) :]
        line = self._journal.lines.get(place)
        held = self._ids.held(op.wire, digest)
        if held is not None:
            self._used(place)
            first = same_call(held[1], op.entry[len(digest) :])
            if not first and isinstance(line, IdLine) and was_accepted(op):
                line.has_other(op.entry)
            return Code.OK if first else Code.ALREADY
        line, is_new = self._line(op, ledger)
        if is_new:
            ledger.terms.young = op.terms.young
            ledger.reread_at = 0  # the store may have lost its data, and another process recreated it
        try:
            self._ids.put(op.wire, digest, op.entry[len(digest) :], now, op.terms.window_ms)
        except UnavailableError:
            if is_new:
                self._journal.strike(place)
            raise
        self._spare.pop(place, None)
        return Code.OK

    def _forget(self, op: ForgetIdOp, ledger: LocalLedger, now: int) -> Reply:
        place = op.place
        line, _ = self._line(op, ledger)
        line.forgotten = True
        line.end_echoes()
        self._spare.pop(place, None)
        return self._ids.answer(op, now)

    def _line(self, op: IdOp, ledger: LocalLedger) -> tuple[IdLine, bool]:
        """Return the line of an id, and whether it is new. Raises UnavailableError if there is no room for it."""
        line = self._journal.lines.get(op.place)
        if isinstance(line, IdLine):
            return line, False
        self._store.reserve(line_bytes(op))
        line = IdLine(op, ledger, self._store, self._journal)
        self._journal.put(line)
        return line, True

    # For claims whose success a ledger remembers

    def finds(self, place: LedgerPlace) -> bool:
        """True if the place of the id is right, by the form in use here."""
        ledger = self.ledgers.get(ledger_of(place.bucket))
        return ledger is not None and ledger.addresses.find(place.id) == (place.bucket, place.digest)

    def is_done(self, place: LedgerPlace) -> bool:
        """True if the id is remembered here."""
        return self._ids.held(place.bucket, place.digest) is not None

    def let_wait(self, record: bytes, op: SeenOp) -> None:
        """Let a record that was changed here wait until the store has reported whether the ledger knows the id."""
        ledger = self.ledgers.get(ledger_of(op.wire))
        if ledger is None or op.place != b"".join(ledger.addresses.find(op.id)):
            return  # the store has lost its data since, and with it the record
        try:
            line, _ = self.will_look(op)
        except UnavailableError:  # there is no room, but the change is made already
            return
        line.let_wait(record)

    def will_look(self, op: SeenOp) -> tuple[IdLine, bool]:
        """Return a line that asks, when the store is back, whether the ledger knows the id; and whether it is new.

        Raises:
            UnavailableError: there is no room for it.
        """
        line, is_new = self._line(op, self.ledgers[ledger_of(op.wire)])
        if is_new:
            line.ledger.reread_at = 0
        return line, is_new

    def share(self, op: FirstOp, record: bytes, *, was_accepted: bool) -> None:
        """Let a record wait for the id that its completion remembered.

        Args:
            op: the operation that remembered the id.
            record: the key of the record.
            was_accepted: the completion was sent, so the store may have remembered the id for it.
        """
        line = self._journal.get(op.place)
        if isinstance(line, IdLine):
            line.shared = line.shared or was_accepted
            line.let_wait(record)

    def saw_completion(self, place: LedgerPlace) -> None:
        """Remember that the store has completed a claim."""
        if place.name not in self._journal.lines:
            nonce = place.entry[len(place.digest) :]
            self._know(place.seen(), nonce, self._store.now(), place.terms.window_ms)

    # Beside the store

    def saw(self, op: LedgerOps, reply: Reply) -> None:
        """Remember the store's answer about an id, unless a line exists, because then this process knows better."""
        if isinstance(op, LedgerOp):
            if isinstance(reply, StoredForm) and op.ttl_ms:
                self._learn(op.wire, reply, op.ttl_ms)
        elif not isinstance(op, WeighOp):
            line = self._journal.lines.get(op.place)
            if line is None:
                self._saw_id(op, reply)
            elif isinstance(op, FirstOp) and isinstance(line, IdLine) and reply is Code.OK:
                held = self._held(line)
                if held is None or not same_call(held[1], op.entry[len(line.digest) :]):
                    line.has_other(op.entry, is_certain=True)

    def _saw_id(self, op: IdOp, reply: Reply) -> None:
        digest = op.place[len(op.wire) :]
        now = self._store.now()
        held = self._ids.held(op.wire, digest)
        if isinstance(op, FirstOp) and reply is Code.OK:
            nonce = op.entry[len(digest) :]
            if held is not None and same_call(held[1], nonce):
                self._used(op.place)  # asked again
            elif not op.future.done():  # else its caller was cancelled, and the id is removed again
                self._know(op, nonce, now, op.terms.window_ms)
        elif _is_known(op, reply):
            if held is None or held[1] == b"":
                self._know(op, b"", now, op.terms.window_ms // SLOTS)
            else:
                self._used(op.place)
        elif reply is Code.OK or (reply is Code.ABSENT and not _takes_back(op)):
            self._drop(op.place, op.wire, digest)

    def _know(self, op: IdOp, nonce: bytes, now: int, keep_ms: int) -> None:
        place = op.place
        try:
            self._ids.put(op.wire, place[len(op.wire) :], nonce, now, keep_ms)
        except UnavailableError:
            return
        self._spare.pop(place, None)
        self._spare[place] = (op.wire, place[len(op.wire) :])
        if len(self._spare) > 2 * len(self._ids) + _SLACK:
            kept = [(each, at) for each, at in self._spare.items() if self._ids.held(*at) is not None]
            self._spare = OrderedDict(kept)

    def _used(self, place: bytes) -> None:
        if place in self._spare:
            self._spare.move_to_end(place)

    def _drop(self, place: bytes, bucket: bytes, digest: bytes) -> None:
        self._spare.pop(place, None)
        self._ids.drop(bucket, digest)

    def drop_oldest(self) -> bool:
        """Drop the longest unused id that the store has too; False if there is none."""
        while self._spare:
            _, at = self._spare.popitem(last=False)
            if self._ids.held(*at) is not None:
                self._ids.drop(*at)
                return True
        return False

    def took_back(self, op: IdOp) -> None:
        """Forget the id of a call that ends in an error."""
        digest = op.place[len(op.wire) :]
        held = self._ids.held(op.wire, digest)
        if held is None or not same_call(held[1], op.entry[len(digest) :]):
            return
        self._drop(op.place, op.wire, digest)
        line = self._journal.lines.get(op.place)
        if isinstance(line, IdLine) and not line.forgotten and not line.has_records:
            self._journal.strike(op.place)

    def note_orphan(self, wire: bytes, entry: bytes) -> None:
        """Note that the store may have remembered an id for a call that ended in an error."""
        line = self._journal.lines.get(wire + entry[:-NONCE_BYTES])
        if isinstance(line, IdLine):
            line.has_other(entry)

    # Its form

    def _learn(self, wire: bytes, stored: StoredForm, ttl_ms: int) -> bool:
        """Take the store's form; False if it cannot be read, or has no places for the ids that are known here."""
        form, known = LedgerForm.read(stored.text), self.ledgers.get(wire)
        if form is None or (form.dense and known is not None and not known.form.dense):
            return False
        until_ms = stored.now_ms + _RELY_MS
        if form.former is not None and stored.now_ms < form.switch_ms:
            form, until_ms = form.former, min(until_ms, form.switch_ms - 1)
        ledger = self.ledgers.pop(wire, None)
        if ledger is None:
            ledger = LocalLedger(wire, stored.text, form, ttl_ms)
        elif ledger.form.secret != form.secret:
            former_ms = ledger.form.window_ms
            ledger.take_form(stored.text, form)
            self._move(ledger, former_ms)
        ledger.text = stored.text
        self._keep(ledger)
        ledger.was_read(until_ms, self._store.now())
        return True

    def _move(self, ledger: LocalLedger, keep_ms: int) -> None:
        """Move the ids of the journal to their places in the store's form."""
        moves = []
        for place, line in self._journal.all():
            if not isinstance(line, IdLine) or line.ledger is not ledger:
                continue
            bucket, digest = ledger.addresses.find(line.id)
            if bucket + digest in self._journal.lines:
                self._journal.strike(place)  # with a narrow digest two ids are one
                continue
            moves.append((line.bucket, line.digest, bucket, digest))
            line.move_to(bucket, digest)
        self._ids.move(moves, keep_ms)

    # Into the store

    def next_operations(self, line: IdLine, now: int, most: int) -> list[JournalOp]:
        """Return what to send for a line, nothing if it is over. A `LedgerOp` must be answered first.

        If the store has the id for another call of this process, these are removals, `most` of them at most:
        callers of one id may have left thousands of entries.
        """
        if not self.stands(line):
            return []
        ledger = line.ledger
        if ledger.reread_at <= now:
            return [LedgerOp(ledger.wire, ledger.text if ledger.absent else b"", ledger.ttl_ms)]
        if line.forgotten:
            return [ForgetIdOp(line.bucket, line.digest, ledger.terms, line.id)]
        if line.is_taken:
            entries = islice(line.other_entries, most)
            return [ForgetIdOp(line.bucket, entry, ledger.terms, line.id) for entry in entries]
        held = self._held(line)
        if held is None:
            return [SeenOp(line.bucket, line.digest, ledger.terms, line.id)]
        return [FirstOp(line.bucket, line.digest + without_patience(held[1]), ledger.terms, line.id)]

    def adopted(self, op: LedgerOp | IdOp, reply: object) -> Conflict | Unreplayed | None:
        """Take the store's reply."""
        if isinstance(op, LedgerOp):
            if reply is Code.ABSENT and op.wire in self.ledgers:
                self.ledgers[op.wire].absent = True
                return None
            if isinstance(reply, StoredForm) and self._learn(op.wire, reply, op.ttl_ms):
                return None
            return self._lost_ledger(op.wire)
        line = self._journal.get(op.place)
        if not isinstance(line, IdLine):
            return None  # the line is over, undone, or moved
        if reply is Code.STALE:
            line.ledger.reread_at = 0
            self._journal.again(op.place)
            return None
        if reply is Code.FULL or reply is Code.FOREIGN:
            why = (
                "its bucket is full"
                if reply is Code.FULL
                else "the store holds a value that fastdedup did not write"
            )
            return self._unreplayed(line, why)
        if isinstance(op, ForgetIdOp):
            if op.takes_back:
                line.removed(op.entry, was_there=reply is Code.OK)
                self._journal.again(op.place)
            else:
                self._removed(line)
            return None
        return self._looked(line, op, reply) if isinstance(op, SeenOp) else self._remembered(line, op, reply)

    def _looked(self, line: IdLine, op: SeenOp, reply: object) -> Conflict | None:
        """Take the store's answer to a look, for the records that wait for it. The next outage needs it, too."""
        if line.forgotten or self._held(line) is not None:
            self._journal.again(line.wire)  # the id was forgotten or remembered here meanwhile
            return None
        if reply is Code.ALREADY and line.is_taken_by_us():
            self._journal.again(line.wire)
            return None
        event = line.drop_records() if reply is Code.ALREADY else None
        self._journal.strike(line.wire)
        if isinstance(reply, Code):
            self._saw_id(op, reply)
        return event

    def _remembered(self, line: IdLine, op: IdOp, reply: object) -> Conflict | None:
        conflict = reply is Code.ALREADY and not line.shared
        if line.forgotten or (conflict and line.is_taken_by_us()):
            self._journal.again(line.wire)
            return None
        lost = line.drop_records() if conflict else None
        self._journal.strike(line.wire)
        self._spare[line.wire] = (line.bucket, line.digest)
        if not conflict or lost is not None:
            return lost
        nonce = op.entry[len(line.digest) :].hex()
        return Conflict(names_of(line.ledger.wire)[0], line.key, nonce, "", "theirs")

    def _removed(self, line: IdLine) -> None:
        line.forgotten = False
        if self._held(line) is None:
            self._journal.strike(line.wire)  # no look is needed, because the id was removed for all callers
        else:
            self._journal.again(line.wire)

    def put_back(self, op: IdOp, *, asked: bool, lane: bytes) -> Unreplayed | None:
        """Keep an operation for later. A removal is not sent twice: it might remove an id that came later."""
        line = self._journal.get(op.place)
        if not isinstance(line, IdLine):
            return None
        if isinstance(op, ForgetIdOp) and asked and not op.takes_back:
            self._removed(line)
            namespace = names_of(line.ledger.wire)[0]
            return Unreplayed(namespace, line.key, "", "whether the store has forgotten it is unknown")
        self._journal.again(line.wire, lane=lane)
        return None

    def give_up(self, line: IdLine) -> list[Unreplayed]:
        """Return an event for a line that the store never got."""
        if not (line.forgotten or self._held(line)) or line.has_records:  # a record has its own event
            return []
        return [Unreplayed(names_of(line.ledger.wire)[0], line.key, "", "closed before the store was back")]

    def _unreplayed(self, line: IdLine, why: str) -> Unreplayed:
        self._journal.strike(line.wire)
        self._drop(line.wire, line.bucket, line.digest)
        return Unreplayed(names_of(line.ledger.wire)[0], line.key, "", why)

    def _lost_ledger(self, wire: bytes) -> Unreplayed:
        """Drop all lines of a ledger whose form cannot be used, because nothing can be remembered there."""
        lines = [
            line for _, line in self._journal.all() if isinstance(line, IdLine) and line.ledger.wire == wire
        ]
        for line in lines:
            self._unreplayed(line, "")
        namespace, name = names_of(wire)
        return Unreplayed(namespace, name, "", f"the ledger's form cannot be used: {len(lines)} ids are lost")


def _takes_back(op: IdOp) -> bool:
    """True if it removes one call's entry: if that is not there, the id may be another call's."""
    return isinstance(op, ForgetIdOp) and op.takes_back


def _is_known(op: IdOp, reply: Reply) -> bool:
    """True if the store remembers an id for another call, and that call will not be undone."""
    if reply is Code.PENDING:
        return GRANTED.lately(op.place, op.terms.window_ms / 1000)
    return reply is Code.ALREADY or (isinstance(op, SeenOp) and reply is Code.OK)
