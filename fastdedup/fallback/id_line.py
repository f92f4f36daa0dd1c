"""A line of the journal for one id of a ledger, the records that wait for it, and the known facts of its ledger.

A record waits for its id if a claim's success goes into a ledger (`remember=`): before the record may go into the
store, it must be known whether the ledger has the id.
"""

from __future__ import annotations

from ..events import Conflict
from ..kernel.keyspace import names_of
from ..ledger.forms import LedgerForm
from ..ledger.ids import places_of
from ..ledger.operations import IdOp, LedgerTerms
from ..stores.entry import SETTLED, is_held
from ..stores.memory import MemoryStore
from .adoption import text_of
from .journal import Journal, JournalLine

_LINE_BYTES = 600
"""Rough size of a line without its id."""
_ASK_AGAIN_MS = 20_000


class LocalLedger:
    """The known facts of a ledger.

    Attributes:
        wire: its store key.
        text: its form's text.
        terms: the terms of the operations for the store.
        reread_at: the time in ms since 1970 after which the form must be read again before an operation is sent; 0:
            before every one.
        ttl_ms: for how long the store keeps the form.
        absent: the store has reported that it has no form.
    """

    __slots__ = ("absent", "addresses", "form", "reread_at", "terms", "text", "ttl_ms", "wire")

    def __init__(self, wire: bytes, text: bytes, form: LedgerForm, ttl_ms: int) -> None:
        self.wire = wire
        self.ttl_ms = ttl_ms
        self.absent = False
        self.take_form(text, form)

    def take_form(self, text: bytes, form: LedgerForm) -> None:
        """Take another form: a caller that relies on the terms of the former one must ask again."""
        self.text = text
        self.form = form
        self.addresses = places_of(self.wire, form)
        self.terms = LedgerTerms(form, "set", 0)
        self.reread_at = 0

    def was_read(self, until_ms: int, now: int) -> None:
        """Rely on the form for a while, because the store has confirmed it."""
        self.absent = False
        self.terms.until_ms = until_ms
        self.reread_at = now + _ASK_AGAIN_MS


class IdLine(JournalLine):
    """The work for one id when the store is back: remove it (`forgotten`), remember it, or look for it.

    `wire` is the id's place: its bucket's key and its digest.

    Attributes:
        id: the id itself, which gives its place for any form.
        records: the keys of the records that wait for this line.
        shared: a completion of this process that was sent may have remembered the id in the store.
        other_entries: entries of the id that the store may have for other calls of this process, which ended in an
            error or got "duplicate" here, without those whose removal the store has answered. At most one of them is
            in the bucket.
        is_taken: the store has the id for another call. The other entries are removed there until one of them is
            found; then the id is sent again. If no entry is left and the store has the id, it is another process's.
    """

    __slots__ = (
        "_journal",
        "_removed",
        "_store",
        "bucket",
        "digest",
        "id",
        "is_taken",
        "ledger",
        "other_entries",
        "records",
        "shared",
        "size",
    )

    def __init__(self, op: IdOp, ledger: LocalLedger, store: MemoryStore, journal: Journal) -> None:
        name = names_of(ledger.wire)[1]
        super().__init__(op.place, f"{name}/{op.id.decode(errors='replace')}", None)
        self.bucket = op.wire
        self.digest = op.place[len(op.wire) :]
        self.id = op.id
        self.ledger = ledger
        self.shared = False
        self.other_entries: dict[bytes, None] = {}
        self.is_taken = False
        self._removed: set[bytes] = set()
        self.size = line_bytes(op)
        self.records: tuple[bytes, ...] = ()
        self._store = store
        self._journal = journal

    def struck(self) -> None:
        """Give back the room of the line; the records that have waited for it may be sent."""
        self._store.reserved -= self.size
        for wire in self.records:
            record = self._journal.get(wire)
            if record is not None and record.id_line is self:
                record.id_line = None
                self._journal.again(wire)

    def has_other(self, entry: bytes, *, is_certain: bool = False) -> None:
        """Remember that the store may have another call's entry. `is_certain`: it has just said so."""
        if is_certain or entry not in self._removed:
            self.other_entries[entry] = None

    def is_taken_by_us(self) -> bool:
        """Take the store's answer that it has the id. Return True if it may have it for a call of this process."""
        self.is_taken = bool(self.other_entries)
        return self.is_taken

    def removed(self, entry: bytes, *, was_there: bool) -> None:
        """Take the store's answer to the removal of another call's entry."""
        self.other_entries.pop(entry, None)
        self._removed.add(entry)
        if was_there or not self.other_entries:
            self.is_taken = False

    # The records that wait for it

    def let_wait(self, wire: bytes) -> None:
        """Let a record that has a line wait for this line."""
        record = self._journal.get(wire)
        if record is not None:
            record.id_line = self
            if wire not in self.records:
                self.records = (*self.records, wire)

    @property
    def has_records(self) -> bool:
        """True while a record waits."""
        return any(self._store.entry(wire) is not None for wire in self.records if self._waits(wire))

    def _waits(self, wire: bytes) -> bool:
        record = self._journal.get(wire)
        return record is not None and record.id_line is self

    def drop_records(self) -> Conflict | None:
        """Drop the records, because another call's success is in the ledger. Return an event if an owner has lost."""
        event, now = None, self._store.now()
        for wire in filter(self._waits, self.records):
            entry, key = self._store.entry(wire), self._journal.lines[wire].key
            self._journal.strike(wire)
            self._store.drop(wire)
            if entry is None:
                continue
            if entry.state in SETTLED or is_held(entry, now):
                event = Conflict(names_of(wire)[0], key, text_of(entry.owner), "", "theirs")
        return event

    def end_echoes(self) -> None:
        """Let the records of successes end with their echo, because their id was forgotten."""
        for wire in self.records:
            entry = self._store.entry(wire)
            if entry is not None and entry.state == "S":
                self._store.keep(wire, entry, entry.until)

    def move_to(self, bucket: bytes, digest: bytes) -> None:
        """Move the line and its records to the place that the store's form gives the id."""
        records = tuple(bucket + wire[len(self.bucket) :] for wire in self.records)
        for wire, to in zip(self.records, records, strict=True):
            line = self._journal.get(wire)
            if line is not None:
                self._journal.move(line, to)
            self._store.move(wire, to)
        self._journal.move(self, bucket + digest)
        self.records, self.bucket, self.digest = records, bucket, digest
        self.other_entries.clear()
        self.is_taken = False


def line_bytes(op: IdOp) -> int:
    """Return an estimate of the memory of an id's line."""
    return _LINE_BYTES + 2 * len(op.id)
