"""PostgreSQL, 12 and later.

Keys of one call are inserted sorted, or two calls deadlock. Nothing here relies on an error inside the transaction,
because an error ends it; `insert_unless_busy` sets a savepoint for that reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from uuid import UUID

from ..faults import DatabaseFault, LockedError
from .base import Dialect, Flow, Kept, Marks, Statement, TableName

_SECOND = "date_trunc('second', now()) + interval '1 second'"
"""The next full second: never too early for a purge. Rows of one second share an entry in the index of `at`, which
saves 12 of an id's 126 bytes."""
_OWN = "txid_status(txid_current() - age(xmin)) = 'in progress'"
"""True for a row that the present transaction, or a savepoint of it, has inserted: a transaction sees no other row
before its COMMIT. `age` counts back from the present transaction's number, which gives xmin its leading digits."""
_LOCKS = 0x0FA57DED << 32
"""The advisory lock of a table is this number, plus the table's number."""

_BY_STATE = {
    "40001": DatabaseFault.RETRY,
    "40P01": DatabaseFault.RETRY,
    "55P03": DatabaseFault.LOCKED,
    "57014": DatabaseFault.TIMED_OUT,  # or canceled by an operator
    "42P01": DatabaseFault.NO_TABLE,
    "3F000": DatabaseFault.NO_TABLE,
    "42703": DatabaseFault.MISFIT,
    "42804": DatabaseFault.MISFIT,
    "42P10": DatabaseFault.MISFIT,
    "25006": DatabaseFault.STANDBY,  # also in a transaction that the caller has made READ ONLY
    "25P02": DatabaseFault.ABORTED,
}
"""Errors by SQLSTATE; see the manual, appendix A."""
_LOST_STATES = ("08", "40003", "53", "57P0", "58", "F0", "XX")
"""The beginnings of the SQLSTATEs after which it is unknown what has happened."""


class PostgreSQL(Dialect):
    """`ON CONFLICT DO NOTHING` waits for a twin in flight, and never fails."""

    name = "postgresql"
    anchors = False
    batch = 3000
    mark_type = "uuid"
    age = "CAST(extract(epoch FROM now() - {}) AS double precision)"
    stretches = "floor({} / CAST(? AS double precision))"
    column_types: ClassVar[dict[str, tuple[str, ...]]] = {
        "id": ("uuid",),
        "at": ("timestamp with time zone",),
        "result": ("bytea",),
    }

    @staticmethod
    def fault(error: BaseException) -> DatabaseFault | None:
        """See `Dialect`."""
        state = _state(error)
        if state is None:
            return None
        if state.startswith(_LOST_STATES):
            return DatabaseFault.UNKNOWN
        return _BY_STATE.get(state, DatabaseFault.REFUSED)

    def __init__(self, table_name: TableName) -> None:
        super().__init__(table_name)
        insert = f"INSERT INTO {self.table} (id, at{{}} ON CONFLICT (id) DO NOTHING"
        # Without RETURNING, because the server and the driver would have to handle one more row.
        self._insert_one = insert.format(f") VALUES (?, {_SECOND})")
        self._insert_marked = insert.format(f", fingerprint) VALUES (?, {_SECOND}, ?)")
        self._insert_many = insert.format(f") SELECT unnest(CAST(? AS uuid[])), {_SECOND}") + " RETURNING id"
        pairs = "unnest(CAST(? AS uuid[]), CAST(? AS uuid[])) AS new (id, mark)"
        self._insert_many_marked = (
            insert.format(f", fingerprint) SELECT id, {_SECOND}, mark FROM {pairs}") + " RETURNING id"
        )
        self._complete = f"UPDATE {self.table} SET result = ? WHERE id = ? AND result IS NULL AND {_OWN}"
        self._is_own = f"SELECT 1 FROM {self.table} WHERE id = ? AND {_OWN}"

    def ddl(self, *, marked: bool = True) -> str:
        """See `Dialect`. The name of an index takes no schema."""
        fingerprint = f",\n    fingerprint {self.mark_type}" if marked else ""
        return (
            f"CREATE TABLE {self.table} (\n"
            "    id uuid PRIMARY KEY,\n"
            "    at timestamptz NOT NULL DEFAULT now(),\n"
            f"    result bytea{fingerprint}\n"
            ");\n"
            f'CREATE INDEX "{self.table_name.table}_at" ON {self.table} (at);\n'
        )

    def columns_statement(self) -> Statement:
        """See `Dialect`."""
        where = "attrelid = to_regclass(CAST(? AS text)) AND attnum > 0 AND NOT attisdropped"
        return Statement(
            f"SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE {where}", (self.table,)
        )

    def unique_id(self) -> Statement:
        """See `Dialect`."""
        return Statement(
            "SELECT 1 FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attname = 'id' "
            "WHERE indrelid = to_regclass(CAST(? AS text)) AND indisunique AND indisvalid AND indimmediate "
            "AND indpred IS NULL AND indnkeyatts = 1 AND indkey[0] = attnum",
            (self.table,),
        )

    def insert(self, ids: Sequence[bytes], marks: Marks) -> Flow[set[bytes]]:
        """See `Dialect`. One statement for all, in the order of the ids."""
        rows = [self._value(each) for each in ids]
        if marks:
            fingerprints = [mark and self._value(mark) for mark in map(marks.get, ids)]
            done = yield Statement(self._insert_many_marked, (rows, fingerprints))
        else:
            done = yield Statement(self._insert_many, (rows,))
        return {_id(row[0]) for row in done.rows}

    def insert_unless_busy(self, row_id: bytes, mark: bytes | None) -> Flow[bool]:
        """See `Dialect`."""
        before = (yield Statement("SELECT current_setting('lock_timeout')")).rows[0][0]
        yield Statement("SAVEPOINT fastdedup_inbox")
        try:
            yield Statement("SET LOCAL lock_timeout = '1ms'")
            new = bool((yield self.insert_one(row_id, mark)).count)
        except LockedError:
            locked = True
        else:
            locked = False
        if locked:
            yield Statement("ROLLBACK TO SAVEPOINT fastdedup_inbox")  # undoes the setting too
            yield Statement("RELEASE SAVEPOINT fastdedup_inbox")
            raise LockedError("a twin is in flight")
        yield Statement("SELECT set_config('lock_timeout', CAST(? AS text), true)", (before,))
        yield Statement("RELEASE SAVEPOINT fastdedup_inbox")
        return new

    def kept(self, ids: Sequence[bytes], *, marked: bool) -> Flow[dict[bytes, Kept]]:
        """See `Dialect`. This needs its own statement: the insert does not see a row that its twin has committed."""
        those = "= ?" if len(ids) == 1 else "= ANY(CAST(? AS uuid[]))"
        fingerprint = "fingerprint" if marked else "NULL"
        found = yield Statement(
            f"SELECT id, result, {fingerprint} FROM {self.table} WHERE id {those}", (self._parameter(ids),)
        )
        return {
            _id(row_id): Kept(bytes(result or b""), None if mark is None else _id(mark))
            for row_id, result, mark in found.rows
        }

    def finish(self, row_id: bytes, payload: bytes | None, anchor: str, *, look: bool) -> Flow[bool]:
        """See `Dialect`. Both statements look at the row, which shows what transaction has inserted it."""
        if payload is not None:
            return bool((yield self.complete(row_id, payload)).count)
        return bool((yield Statement(self._is_own, (self._value(row_id),))).rows)

    def purge(self, keep: float, size: int) -> Flow[int | None]:
        """See `Dialect`. It deletes by `ctid`, which needs no second look into the index of the ids.

        The age is checked twice, because rows of different partitions have the same ctid. The second time it uses IS
        TRUE, for which no index is used, even if the planner estimates the number of old rows wrongly.
        """
        leader = yield Statement(
            "SELECT pg_try_advisory_xact_lock(CAST(? AS bigint) + "
            "CAST(CAST(to_regclass(CAST(? AS text)) AS oid) AS bigint)), "
            "set_config('synchronous_commit', 'off', true)",  # if a crash loses a batch, the next purge deletes it
            (_LOCKS, self.table),
        )
        if not leader.rows[0][0]:
            return None
        old = "at < now() - make_interval(secs => CAST(? AS double precision))"
        done = yield Statement(
            f"DELETE FROM {self.table} WHERE ({old}) IS TRUE AND ctid = ANY(ARRAY("
            f"SELECT ctid FROM {self.table} WHERE {old} LIMIT {size:d} FOR UPDATE SKIP LOCKED))",
            (keep, keep),
        )
        return done.count

    def size(self) -> Statement:
        """See `Dialect`. A partitioned table has no bytes of its own."""
        return Statement(
            "SELECT pg_total_relation_size(named) + COALESCE("
            "(SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree(named) WHERE relid <> named), 0) "
            "FROM CAST(to_regclass(CAST(? AS text)) AS regclass) AS named",
            (self.table,),
        )

    def _value(self, row_id: bytes) -> Any:
        """Return the value that the driver takes for a UUID."""
        return UUID(bytes=row_id)

    def _parameter(self, ids: Sequence[bytes]) -> Any:
        """Return ids in one parameter, so that the statement is the same for any number of ids."""
        return self._value(ids[0]) if len(ids) == 1 else [self._value(each) for each in ids]


def _id(value: Any) -> bytes:
    """Return the id from a driver's UUID, or from a UUID's text."""
    return value.bytes if isinstance(value, UUID) else UUID(str(value)).bytes


def _state(error: BaseException) -> str | None:
    """Return PostgreSQL's SQLSTATE: an attribute of the error, or, with pg8000, a field of the server's message."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state is None and error.args and isinstance(error.args[0], dict):
        state = error.args[0].get("C")
    return state if isinstance(state, str) else None
