"""The decisions of every inbox, without I/O: the ids of keys, the order of statements, a transaction's outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from hashlib import blake2b
from threading import Lock
from typing import Any, Final, Literal, NamedTuple
from weakref import WeakValueDictionary

from ..checks import Seconds, check_count, check_seconds
from ..codec import Codec, JSONCodec, decode, encode
from ..core.settings import check_codec
from ..decorated import DecoratedFunctions
from ..errors import ConfigError, UsageError
from ..kernel.keyspace import MAX_KEY_BYTES, Keyspace, Kind
from ..keys import check_namespace
from ..model import Outcome
from ..results.completed import completed_json
from ..results.declared import LostResult, check_row, read_as
from .dialects import Dialect, TableName, dialect_of
from .dialects.base import MISSING, Database, Figures, Flow, Kept, Marks, misfits
from .faults import LockedError, no_table

TABLE: Final = "fastdedup_inbox"
MAX_RESULT: Final = 256 * 1024
"""Bytes of the largest result by default; claims have the same."""
Busy = Literal["wait", "skip"]
ID_BYTES: Final = 16
MAX_KEYS: Final = 1000
"""The most keys in one statement: SQLite and PostgreSQL bound a statement's parameters."""


class Found(NamedTuple):
    """The state of a key: its outcome in this transaction, and the first result's bytes."""

    outcome: Outcome
    payload: bytes = b""


_FIRST: Final = Found(Outcome.ACQUIRED)
_MISMATCH: Final = Found(Outcome.MISMATCH)
_NONE: Final[frozenset[bytes]] = frozenset()
_UNMARKED: Final[Marks] = {}


_MOST_DATABASES: Final = 1_000
"""The most databases whose tables a process remembers as checked."""


def check_busy(busy: Busy) -> Busy:
    """Return the value of `busy=`, or raise ConfigError if there is no such value."""
    if busy not in ("wait", "skip"):
        raise ConfigError(f'busy= must be "wait" or "skip", got {busy!r}')
    return busy


def _remember(looked_at: dict[Database, Dialect], database: Database, sql: Dialect) -> None:
    if len(looked_at) >= _MOST_DATABASES:
        looked_at.clear()  # each is checked again
    looked_at[database] = sql


class TableRules:
    """The flows for a table, for any inboxes that it has.

    Args:
        table_name: the table.
        keep: seconds after which a purge deletes a row.
    """

    def __init__(self, table_name: TableName, keep: float) -> None:
        self.table_name = table_name
        self.keep = keep
        # Mutable: the dialects in use by their names; the dialect of each database whose table was checked, and of
        # those whose table keeps fingerprints.
        self._dialects: dict[str, Dialect] = {}
        self._checked: dict[Database, Dialect] = {}
        self._marked: dict[Database, Dialect] = {}

    def dialect(self, database: Database) -> Dialect:
        """Return the dialect of a database, for this table."""
        name = database[0]
        if name not in self._dialects:
            self._dialects[name] = dialect_of(name, self.table_name)
        return self._dialects[name]

    def checked(self, database: Database) -> Flow[Dialect]:
        """Return the dialect of a database, after a check that its table is an inbox.

        Raises:
            ConfigError: the table does not exist, or is another kind of table.
        """
        sql = self.dialect(database)
        if database not in self._checked:
            yield from self._check(sql)
            _remember(self._checked, database, sql)
        return sql

    def marked(self, database: Database) -> Flow[Dialect]:
        """Return the dialect of a database, after a check that its table is an inbox that keeps fingerprints.

        Raises:
            ConfigError: see `checked`; or the table has no column for fingerprints.
        """
        sql = yield from self.checked(database)
        if database not in self._marked:
            columns = yield from sql.columns()
            if "fingerprint" not in columns:
                raise ConfigError(
                    f"fingerprint= needs a column that the table {self.table_name} does not have: "
                    f"run {sql.add_fingerprint().strip()}"
                )
            self._refuse(sql, misfits(columns, {"fingerprint": (sql.mark_type.lower(),)}))
            _remember(self._marked, database, sql)
        return sql

    def purge(self, database: Database, size: int) -> Flow[int | None]:
        """Delete up to `size` rows that are too old; return how many, or None if another process purges."""
        sql = yield from self.checked(database)  # else any table with a column `at` would lose its rows
        return (yield from sql.purge(self.keep, size))

    def figures(self, database: Database, stretch: float) -> Flow[Figures]:
        """Return the table's figures; `stretch`: the seconds of each range of ages."""
        sql = yield from self.checked(database)
        return (yield from sql.figures(stretch))

    def _check(self, sql: Dialect) -> Flow[None]:
        faults = yield from sql.faults_of_the_table()
        if faults == [MISSING]:
            raise no_table(self.table_name)
        self._refuse(sql, faults)

    def _refuse(self, sql: Dialect, faults: list[str]) -> None:
        if faults:
            raise ConfigError(
                f"the table {self.table_name} is no inbox: {', and '.join(faults)}. "
                f"`fastdedup inbox ddl --dialect {sql.name}` prints the SQL of one; name it with table="
            )


class InboxRules(TableRules):
    """The settings of one inbox, checked once, and its flows of statements. Arguments and errors: see `Inbox`."""

    def __init__(
        self,
        name: str,
        *,
        keep: Seconds,
        table: str,
        schema: str | None,
        codec: Codec | None,
        max_result: int,
    ) -> None:
        self.name = check_namespace(name, "an inbox's name")
        super().__init__(TableName(table, schema), check_seconds(keep, "keep"))
        self.codec = check_codec(JSONCodec() if codec is None else codec)
        self.max_result = check_count(max_result, "max_result")
        self.limit = f"max_result={max_result}"
        """The setting that it comes from, for errors."""
        self.decorated = DecoratedFunctions()
        self._keys = Keyspace(name, Kind.CLAIM, readable=MAX_KEY_BYTES)
        self.received: Counter[str] = Counter()
        """Received keys by their outcome, for metrics. Threads share it; a count may be missed."""
        # No inbox's name has "(", "=" or "#", so the keys of two inboxes are never equal at a gate.
        is_default = self.table_name == TableName(TABLE)
        self._at_gate = self.name if is_default else f"{self.name}({self.table_name})"
        _register(self)

    def id_of(self, key: Any) -> bytes:
        """Return the 16 bytes that stand for a key of this inbox in the table.

        It is a digest, because databases treat some different texts as equal: texts that differ past a column's
        length, in case, in a space at the end, or in an accent.

        Raises:
            InvalidKeyError: the key is not text, is empty, has over 1024 bytes of UTF-8 or a lone surrogate.
        """
        return blake2b(self._keys.wire(key), digest_size=ID_BYTES).digest()

    def gate_key(self, key: str) -> str:
        """Return the key by which a gate knows a message of this inbox.

        Another inbox handles the same message itself, and so does an inbox of the same name in another table.
        """
        self._keys.wire(key)  # checks it
        text = self._at_gate + "=" + key
        return text if len(text.encode()) <= MAX_KEY_BYTES else f"{self._at_gate}#{self.id_of(key).hex()}"

    # Flows

    def _check(self, sql: Dialect) -> Flow[None]:
        yield from super()._check(sql)
        if any(self.max_result > most for most in sql.most_bytes.values()):
            kind = (yield from sql.columns())["result"]
            most = sql.most_bytes.get(kind, self.max_result)
            if self.max_result > most:
                raise ConfigError(
                    f"the column result of {self.table_name} is {kind}, which holds {most} bytes, and "
                    f"{self.limit} allows more: give the column a longer type, or lower that setting"
                )

    def receive(
        self, database: Database, row_id: bytes, busy: Busy, mark: bytes | None = None
    ) -> Flow[Found]:
        """Remember a key; return its state before. Most messages take this way: no lists, no flow in the flow.

        `mark`: the message's fingerprint. A row with another one is a MISMATCH; a row without one is not compared.
        """
        if busy != "wait":
            return (yield from self.receive_many(database, [row_id], busy, [mark]))[0]
        if mark is None:
            sql = self._checked.get(database) or (yield from self.checked(database))
        else:
            sql = self._marked.get(database) or (yield from self.marked(database))
        if (yield sql.insert_one(row_id, mark)).count:
            return _FIRST
        kept = (yield from sql.kept([row_id], marked=mark is not None)).get(row_id)
        if kept is None:
            kept = yield from self._insert_again(sql, row_id, mark)
        return _FIRST if kept is None else _duplicate(kept, mark)

    def receive_many(
        self, database: Database, ids: Sequence[bytes], busy: Busy, fingerprints: Sequence[bytes | None]
    ) -> Flow[list[Found]]:
        """Remember keys; return each one's state before. The second of two equal keys is a duplicate of the first."""
        check_busy(busy)
        if not ids:
            return []
        # The first of two equal keys is inserted, with its own fingerprint.
        own: Marks = dict(zip(reversed(ids), reversed(fingerprints), strict=True))
        is_marked = any(mark is not None for mark in fingerprints)
        sql = yield from (self.marked if is_marked else self.checked)(database)
        marks = own if is_marked else _UNMARKED
        different = sorted(own)  # in one order; else two calls would wait for each other
        new, locked = yield from (self._skip if busy == "skip" else self._wait)(sql, different, marks)
        if len(new) == len(ids):
            return [_FIRST] * len(ids)
        known = [each for each in different if each not in new and each not in locked]
        rows = yield from self._rows(sql, known, marks)
        new |= {each for each in known if each not in rows}
        return [
            self._found(each, mark, new, locked, rows.get(each) or Kept(b"", own[each]))
            for each, mark in zip(ids, fingerprints, strict=True)
        ]

    def complete(self, database: Database, row_id: bytes, result: Any) -> Flow[bytes]:
        """Keep the result of a key that was received as first; return its bytes.

        Raises:
            ResultError, ResultTooLargeError: the result cannot be stored.
        """
        payload = encode(self.codec, result, self.max_result, completed_json)
        sql = self.dialect(database)
        if not (yield sql.complete(row_id, payload)).count:
            raise ended()
        return payload

    def finish(
        self, database: Database, row_id: bytes, result: Any, anchor: str, *, look: bool
    ) -> Flow[bytes]:
        """Keep the result of a key that was received as first, before the COMMIT; return its bytes.

        If duplicates cannot get the result, the row keeps that instead.

        `look`: check that the row still exists, even if that needs a statement of its own.

        Raises:
            ResultError, ResultTooLargeError: the result cannot be stored.
            UsageError: the transaction or savepoint that holds the row has ended, a statement has failed in it, or
                the row was deleted.
        """
        if isinstance(result, LostResult):
            payload = result.row(self.max_result)
        else:
            payload = encode(self.codec, result, self.max_result)
        if not (yield from self.dialect(database).finish(row_id, payload or None, anchor, look=look)):
            raise ended()
        return payload

    def result(self, found: Found, key: str, declared: Any = None) -> Any:
        """Return the result that a duplicate finds; None if the first one kept no result.

        `declared`: see `Claim.replay`.

        Raises:
            FailedError: the row says why no duplicate can get the result.
            ResultError: the result is not of the declared type, or cannot be read.
        """
        check_row(found.payload, key, self.codec)
        if declared is None:
            return decode(self.codec, found.payload, key)
        return read_as(declared, found.payload, key, self.codec)

    def _rows(self, sql: Dialect, known: Sequence[bytes], marks: Marks) -> Flow[dict[bytes, Kept]]:
        """Return the rows of the ids that were not new. An id that is new by now is left out."""
        rows: dict[bytes, Kept] = {}
        for part in parts(known):
            rows |= yield from sql.kept(part, marked=bool(marks))
        for each in known:
            if each not in rows:
                kept = yield from self._insert_again(sql, each, marks.get(each))
                if kept is not None:
                    rows[each] = kept
        return rows

    def _insert_again(self, sql: Dialect, row_id: bytes, mark: bytes | None) -> Flow[Kept | None]:
        """Insert a row that was not inserted and does not exist; return a twin's row, or None if the id is new now.

        A purge may have deleted it in between: the message is older than `keep`.

        Raises:
            ConfigError: the database drops the insert. An id without a row is never a duplicate.
        """
        if (yield sql.insert_one(row_id, mark)).count:
            return None
        kept = (yield from sql.kept([row_id], marked=mark is not None)).get(row_id)
        if kept is None:
            raise ConfigError(
                f"the database drops what the inbox inserts into {self.table_name}, without an error: look for a "
                "trigger that returns NULL or ignores the row, for a foreign key of the table, or for a partition "
                "that is not there"
            )
        return kept

    def _wait(self, sql: Dialect, ids: Sequence[bytes], marks: Marks) -> Flow[tuple[set[bytes], Set[bytes]]]:
        new: set[bytes] = set()
        for part in parts(ids):
            new |= yield from sql.insert(part, marks)
        return new, _NONE

    def _skip(self, sql: Dialect, ids: Sequence[bytes], marks: Marks) -> Flow[tuple[set[bytes], Set[bytes]]]:
        new, locked = set(), set()
        for each in ids:
            try:
                if (yield from sql.insert_unless_busy(each, marks.get(each))):
                    new.add(each)
            except LockedError:
                locked.add(each)
        return new, locked

    def _found(
        self, row_id: bytes, mark: bytes | None, new: set[bytes], locked: Set[bytes], kept: Kept
    ) -> Found:
        if row_id in locked:
            return Found(Outcome.IN_PROGRESS)
        if row_id in new:
            new.discard(row_id)  # a second place in the list means a duplicate
            return _FIRST
        return _duplicate(kept, mark)


def _duplicate(kept: Kept, mark: bytes | None) -> Found:
    """Return the state of a key that another message, or an earlier delivery of this one, has inserted."""
    if mark is not None and kept.mark is not None and mark != kept.mark:
        return _MISMATCH
    return Found(Outcome.SUCCEEDED, kept.payload)


class TransactionEndedError(UsageError):
    """The work has ended the transaction that holds its row, or has deleted the row.

    Its changes before its own commit() remain.
    """


def ended() -> TransactionEndedError:
    """Return the error for a row that the present transaction no longer holds."""
    return TransactionEndedError(
        "the transaction that holds the inbox's row has ended (it, or the savepoint that the row was received in, "
        "was rolled back or committed before the work was done), or the row was deleted. What the work did in the "
        "present transaction is rolled back. Leave commit and rollback to the block that begins the transaction, and "
        "leave the inbox's rows alone; to go on after an error, use a savepoint"
    )


def left_nested() -> TransactionEndedError:
    """Return the error for work that leaves a nested transaction open, if its database cannot go on from there."""
    return TransactionEndedError(
        "the work has left a nested transaction open, in which the inbox cannot keep its result. What the work did "
        "in the present transaction is rolled back. End the nested one first: `with session.begin_nested():`"
    )


def parts(ids: Sequence[bytes]) -> list[Sequence[bytes]]:
    """Divide ids so that each part fits a statement."""
    return [ids[start : start + MAX_KEYS] for start in range(0, len(ids), MAX_KEYS)]


_known: WeakValueDictionary[str, InboxRules] = WeakValueDictionary()
_lock = Lock()


def _register(rules: InboxRules) -> None:
    """Refuse an inbox that would purge the rows of another one too early.

    A row does not name its inbox, so all inboxes of a table must keep their rows equally long.
    """
    with _lock:
        for place in (f"name {rules.name!r}", f"table {rules.table_name}"):
            other = _known.get(place)
            if other is not None and other.keep != rules.keep:
                raise ConfigError(
                    f"two inboxes of the {place} keep their rows for {other.keep:.15g} s and for {rules.keep:.15g} s"
                    ": a purge would delete the rows of one too early. Give both one keep=, or other tables and names"
                )
        for place in (f"name {rules.name!r}", f"table {rules.table_name}"):
            _known.setdefault(place, rules)
