"""MySQL 8 and MariaDB 10.6, and later.

`INSERT IGNORE` and its row count: `ON DUPLICATE KEY UPDATE` gives another count if the client asks for found rows,
like SQLAlchemy. A result is read with a lock, because a plain SELECT under REPEATABLE READ does not see
rows that were committed since the transaction began. Bytes are sent as hexadecimal text, because not every driver
escapes bytes in the way that the character set of each connection needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ...errors import RetryTransaction
from ..faults import DatabaseFault, LockedError
from .base import Dialect, Flow, Kept, Marks, Statement, TableName, text_of

_IS_IT = "table_schema = COALESCE(?, DATABASE()) AND table_name = ?"

_MYSQL_DRIVERS = ("pymysql", "MySQLdb", "mysql.connector", "mariadb", "asyncmy", "aiomysql")
_BY_NUMBER = {
    1213: DatabaseFault.RETRY,
    1020: DatabaseFault.RETRY,
    1205: DatabaseFault.LOCKED,
    1146: DatabaseFault.NO_TABLE,
    1049: DatabaseFault.NO_TABLE,
    1054: DatabaseFault.MISFIT,
    3572: DatabaseFault.LOCKED,  # NOWAIT
    1290: DatabaseFault.STANDBY,
    1792: DatabaseFault.READ_ONLY,
    1836: DatabaseFault.STANDBY,
    1969: DatabaseFault.TIMED_OUT,  # MariaDB's max_statement_time
    3024: DatabaseFault.TIMED_OUT,  # MySQL's max_execution_time
    3101: DatabaseFault.RETRY,  # group replication has refused the COMMIT
}
_NO_ROOM = {1021, 1037, 1040, 1041, 1135, 1203, 1226}
"""The server has no room: on its disk, in memory, for a thread or for a connection."""
_CONNECTION_ENDS = {1053, 1152, 1158, 1159, 1160, 1161, 1180, 1184, 1317, 1927, 3169, 4031}
"""The server stops, the connection was lost or killed, or the COMMIT was interrupted."""
_CUT_OFF = 1047
"""The server is cut off from its Galera cluster."""
# Numbers from 2000 to 2999 are the client's own: the connection is gone.
_LOST_NUMBERS = _NO_ROOM | _CONNECTION_ENDS | {_CUT_OFF} | set(range(2000, 3000))


class MySQL(Dialect):
    """Times are UTC, for every time zone of a session."""

    name = "mysql"
    quote = "`"
    keeps_equal_savepoints = False
    batch = 500
    mark_type = "BINARY(16)"
    age = "TIMESTAMPDIFF(MICROSECOND, {}, UTC_TIMESTAMP(3)) / 1000000"
    stretches = "FLOOR({} / ?)"
    column_types: ClassVar[dict[str, tuple[str, ...]]] = {
        "id": ("binary(16)",),
        "at": ("datetime(3)", "datetime(6)"),
        "result": ("mediumblob", "longblob"),
    }
    most_bytes: ClassVar[dict[str, int]] = {"mediumblob": (1 << 24) - 1}

    @staticmethod
    def fault(error: BaseException) -> DatabaseFault | None:
        """See `Dialect`."""
        if not type(error).__module__.startswith(_MYSQL_DRIVERS):
            return None
        number = getattr(error, "errno", 0) or next(iter(error.args), None)  # mariadb's args are text
        if not isinstance(number, int) or number < 1000 or number in _LOST_NUMBERS:
            return DatabaseFault.UNKNOWN
        return _BY_NUMBER.get(number, DatabaseFault.REFUSED)

    def __init__(self, table_name: TableName) -> None:
        super().__init__(table_name)
        insert = f"INSERT IGNORE INTO {self.table} (id, at"
        self._insert_one = f"{insert}) VALUES (UNHEX(?), UTC_TIMESTAMP(3))"
        self._insert_marked = f"{insert}, fingerprint) VALUES (UNHEX(?), UTC_TIMESTAMP(3), UNHEX(?))"
        self._complete = f"UPDATE {self.table} SET result = UNHEX(?) WHERE id = UNHEX(?) AND result IS NULL"

    def ddl(self, *, marked: bool = True) -> str:
        """See `Dialect`."""
        fingerprint = f"    fingerprint {self.mark_type},\n" if marked else ""
        return (
            f"CREATE TABLE {self.table} (\n"
            "    id BINARY(16) NOT NULL PRIMARY KEY,\n"
            "    at DATETIME(3) NOT NULL,\n"
            f"    result MEDIUMBLOB,\n{fingerprint}"
            f"    KEY `{self.table_name.table}_at` (at)\n"
            ") ENGINE=InnoDB;\n"
        )

    def columns_statement(self) -> Statement:
        """See `Dialect`."""
        return Statement(
            f"SELECT column_name, column_type FROM information_schema.columns WHERE {_IS_IT}",
            (self.table_name.schema, self.table_name.table),
        )

    def faults_of_the_engine(self) -> Flow[list[str]]:
        """See `Dialect`."""
        engine = yield Statement(
            f"SELECT engine FROM information_schema.tables WHERE {_IS_IT}",
            (self.table_name.schema, self.table_name.table),
        )
        kind = text_of(engine.rows[0][0])
        if kind.lower() == "innodb":
            return []
        return [f"its engine is {kind}, not InnoDB, so it may have no transactions"]

    def unique_id(self) -> Statement:
        """See `Dialect`. Without a unique id `INSERT IGNORE` would let every duplicate through."""
        return Statement(
            "SELECT index_name FROM information_schema.statistics "
            f"WHERE {_IS_IT} AND non_unique = 0 GROUP BY index_name "
            "HAVING COUNT(*) = 1 AND MAX(column_name) = 'id' AND MAX(sub_part) IS NULL",
            (self.table_name.schema, self.table_name.table),
        )

    def _value(self, row_id: bytes) -> str:
        return row_id.hex()

    def insert(self, ids: Sequence[bytes], marks: Marks) -> Flow[set[bytes]]:
        """See `Dialect`. One by one, because the count of many does not say which of them are new."""
        new = set()
        for each in ids:
            if (yield self.insert_one(each, marks.get(each))).count:
                new.add(each)
        return new

    def insert_unless_busy(self, row_id: bytes, mark: bytes | None) -> Flow[bool]:
        """See `Dialect`. MariaDB does not wait at all; MySQL's shortest wait is one second."""
        found = yield Statement("SELECT @@innodb_lock_wait_timeout, VERSION(), @@innodb_rollback_on_timeout")
        before, version, ends = found.rows[0]
        shortest = 0 if "MariaDB" in text_of(version) else 1
        yield Statement(f"SET SESSION innodb_lock_wait_timeout = {shortest}")
        new, fault = None, None
        try:
            new = bool((yield self.insert_one(row_id, mark)).count)
        except Exception as error:  # noqa: BLE001 -- it is raised below
            fault = error
        yield Statement(f"SET SESSION innodb_lock_wait_timeout = {int(before)}")
        if isinstance(fault, LockedError) and int(ends):
            raise RetryTransaction(
                "a twin is in flight, and innodb_rollback_on_timeout=ON has rolled this transaction back: run the "
                "whole of it again"
            ) from fault
        if new is None:
            assert fault is not None
            raise fault
        return new

    def kept(self, ids: Sequence[bytes], *, marked: bool) -> Flow[dict[bytes, Kept]]:
        """See `Dialect`. One by one: a locking read of several may go through the whole table."""
        fingerprint = "fingerprint" if marked else "NULL"
        kept = {}
        for each in ids:
            found = yield Statement(
                f"SELECT result, {fingerprint} FROM {self.table} WHERE id = UNHEX(?) LOCK IN SHARE MODE",
                (each.hex(),),
            )
            for result, mark in found.rows:
                kept[each] = Kept(bytes(result or b""), mark and bytes(mark))
        return kept

    def complete(self, row_id: bytes, payload: bytes) -> Statement:
        """See `Dialect`. The row has no result yet, so the update changes it, and counts even without FOUND_ROWS."""
        return Statement(self._complete, (payload.hex(), row_id.hex()))

    def purge(self, keep: float, size: int) -> Flow[int | None]:
        """See `Dialect`. The lock belongs to the connection, so the batch itself releases it.

        The names of locks are shared by the whole server, so the name contains the database's.
        """
        name = "CONCAT('fastdedup:', MD5(CONCAT(COALESCE(?, DATABASE()), '.', ?)))"
        names = (self.table_name.schema, self.table_name.table)
        leader = yield Statement(f"SELECT GET_LOCK({name}, 0)", names)
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
        yield Statement(f"SELECT RELEASE_LOCK({name})", names)
        if fault is not None:
            raise fault
        return deleted

    def size(self) -> Statement:
        """See `Dialect`. The size is InnoDB's own, which InnoDB updates from time to time."""
        return Statement(
            f"SELECT data_length + index_length FROM information_schema.tables WHERE {_IS_IT}",
            (self.table_name.schema, self.table_name.table),
        )
