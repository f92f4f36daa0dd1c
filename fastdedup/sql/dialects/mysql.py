"""MySQL 8 and MariaDB 10.6, and later.

`INSERT IGNORE` and its row count: `ON DUPLICATE KEY UPDATE` gives another count where the client asks for found rows,
as SQLAlchemy does. A result is read with a lock, because a plain SELECT under REPEATABLE READ does not see what was
committed since the transaction began.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..faults import LockedError
from .base import MISSING, Dialect, Figures, Flow, Statement, ages_of, misfits

_COLUMNS: dict[str, tuple[str, ...]] = {
    "id": ("binary(16)",),
    "at": ("datetime(3)", "datetime(6)"),
    "result": ("mediumblob", "longblob"),
}


class MySQL(Dialect):
    """Times are UTC, whatever the session's time zone is."""

    name = "mysql"
    quote = "`"

    def ddl(self) -> str:
        """See `Dialect`."""
        return (
            f"CREATE TABLE {self.table} (\n"
            "    id BINARY(16) NOT NULL PRIMARY KEY,\n"
            "    at DATETIME(3) NOT NULL,\n"
            "    result MEDIUMBLOB,\n"
            "    KEY (at)\n"
            ") ENGINE=InnoDB;\n"
        )

    def faults_of_the_table(self) -> Flow[list[str]]:
        """See `Dialect`. Without a unique id `INSERT IGNORE` would let every duplicate through."""
        where = "table_schema = COALESCE(?, DATABASE()) AND table_name = ?"
        names = (self.table_name.schema, self.table_name.table)
        columns = yield Statement(
            f"SELECT column_name, column_type FROM information_schema.columns WHERE {where}", names
        )
        if not columns.rows:
            return [MISSING]
        faults = misfits({str(name): _text(kind) for name, kind in columns.rows}, _COLUMNS)
        engine = yield Statement(f"SELECT engine FROM information_schema.tables WHERE {where}", names)
        if _text(engine.rows[0][0]) != "innodb":
            faults.append(f"its engine is {engine.rows[0][0]}, which has no transactions, not InnoDB")
        indexes = yield Statement(
            "SELECT index_name FROM information_schema.statistics "
            f"WHERE {where} AND non_unique = 0 GROUP BY index_name HAVING COUNT(*) = 1 AND MAX(column_name) = 'id'",
            names,
        )
        if not faults and not indexes.rows:
            faults.append("its column id is not unique")
        return faults

    def insert(self, ids: Sequence[bytes]) -> Flow[set[bytes]]:
        """See `Dialect`. One by one, as the count of many does not say which of them are new."""
        new = set()
        for each in ids:
            done = yield Statement(
                f"INSERT IGNORE INTO {self.table} (id, at) VALUES (?, UTC_TIMESTAMP(3))", (each,)
            )
            if done.count:
                new.add(each)
        return new

    def insert_unless_busy(self, row_id: bytes) -> Flow[bool]:
        """See `Dialect`. MariaDB does not wait at all; MySQL's shortest wait is one second."""
        found = yield Statement("SELECT @@innodb_lock_wait_timeout, VERSION()")
        before, version = int(found.rows[0][0]), str(found.rows[0][1])
        shortest = 0 if "MariaDB" in version else 1
        yield Statement(f"SET SESSION innodb_lock_wait_timeout = {shortest}")
        locked = None
        try:
            new = yield from self.insert([row_id])
        except LockedError as error:
            locked = error
        yield Statement(f"SET SESSION innodb_lock_wait_timeout = {before:d}")
        if locked is not None:
            raise locked
        return row_id in new

    def results(self, ids: Sequence[bytes]) -> Flow[dict[bytes, bytes]]:
        """See `Dialect`. One by one: a locking read of several may go through the whole table."""
        results = {}
        for each in ids:
            found = yield Statement(
                f"SELECT result FROM {self.table} WHERE id = ? LOCK IN SHARE MODE", (each,)
            )
            if found.rows and found.rows[0][0] is not None:
                results[each] = bytes(found.rows[0][0])
        return results

    def complete(self, row_id: bytes, payload: bytes) -> Flow[bool]:
        """See `Dialect`. Looks first, as the count of an update that changes nothing may be 0."""
        there = yield Statement(f"SELECT 1 FROM {self.table} WHERE id = ? FOR UPDATE", (row_id,))
        yield Statement(f"UPDATE {self.table} SET result = ? WHERE id = ?", (payload, row_id))
        return bool(there.rows)

    def purge(self, keep: float, size: int) -> Flow[int | None]:
        """See `Dialect`. The lock is the connection's, so it is given back within the batch."""
        lock = f"fastdedup:{self.table_name}"[:64]
        leader = yield Statement("SELECT GET_LOCK(?, 0)", (lock,))
        if leader.rows[0][0] != 1:
            return None
        deleted, fault = 0, None
        try:
            done = yield Statement(
                f"DELETE FROM {self.table} WHERE at < UTC_TIMESTAMP(3) - INTERVAL ? MICROSECOND "
                f"ORDER BY at LIMIT {size:d}",
                (round(keep * 1e6),),
            )
            deleted = done.count
        except Exception as error:  # noqa: BLE001 -- it is raised below
            fault = error
        yield Statement("SELECT RELEASE_LOCK(?)", (lock,))
        if fault is not None:
            raise fault
        return deleted

    def figures(self, stretch: float) -> Flow[Figures]:
        """See `Dialect`. The size is InnoDB's own, which it brings up to date every so often."""
        size = yield Statement(
            "SELECT data_length + index_length FROM information_schema.tables "
            "WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ?",
            (self.table_name.schema, self.table_name.table),
        )
        age = "TIMESTAMPDIFF(MICROSECOND, {}, UTC_TIMESTAMP(3)) / 1000000"
        oldest = yield Statement(f"SELECT {age.format('MIN(at)')} FROM {self.table}")
        ages = yield Statement(
            f"SELECT FLOOR({age.format('at')} / ?) AS stretch, COUNT(*) FROM {self.table} GROUP BY stretch",
            (stretch,),
        )
        return Figures(
            rows=sum(int(row[1]) for row in ages.rows),
            size=int(size.rows[0][0]),
            oldest=None if oldest.rows[0][0] is None else float(oldest.rows[0][0]),
            ages=ages_of(ages.rows, stretch),
        )


def _text(value: object) -> str:
    """Return a catalog's text: some drivers give it as bytes."""
    text = value.decode() if isinstance(value, bytes) else str(value)
    return text.lower()
