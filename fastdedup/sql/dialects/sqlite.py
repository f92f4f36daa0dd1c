"""SQLite, 3.35 and later. It has one writer at a time: use BEGIN IMMEDIATE, so that no transaction must give up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..faults import DatabaseFault
from .base import Dialect, Flow, Kept, Marks, Statement, TableName

_NOW = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
"""Milliseconds since 1970."""

_BY_CODE = {
    5: DatabaseFault.RETRY,
    6: DatabaseFault.RETRY,
    8: DatabaseFault.READ_ONLY,
    19: DatabaseFault.REFUSED,
}
"""The faults by the first byte of the result code."""


class SQLite(Dialect):
    """Times are whole milliseconds since 1970."""

    name = "sqlite"
    mark_type = "BLOB"
    age = f"({_NOW} - {{}}) / 1000.0"
    stretches = "CAST({} / ? AS INTEGER)"
    column_types: ClassVar[dict[str, tuple[str, ...]]] = {
        "id": ("blob",),
        "at": ("integer",),
        "result": ("blob",),
    }

    @staticmethod
    def fault(error: BaseException) -> DatabaseFault | None:
        """See `Dialect`."""
        code = getattr(error, "sqlite_errorcode", None)
        if code is None:
            return None
        text = str(error)
        if text.startswith("no such table"):
            return DatabaseFault.NO_TABLE
        if text.startswith(("no such column", "table ", "ON CONFLICT clause does not match")):
            return DatabaseFault.MISFIT
        return _BY_CODE.get(code & 0xFF, DatabaseFault.REFUSED if code & 0xFF == 1 else DatabaseFault.UNKNOWN)

    def __init__(self, table_name: TableName) -> None:
        super().__init__(table_name)
        # Without RETURNING, which would make a temporary table of its rows: that costs as much as the insert.
        self._insert_one = f"INSERT INTO {self.table} (id, at) VALUES (?, {_NOW}) ON CONFLICT (id) DO NOTHING"
        self._insert_marked = self._insert_one.replace("at)", "at, fingerprint)").replace(_NOW, f"{_NOW}, ?")
        self._complete = f"UPDATE {self.table} SET result = ? WHERE id = ? AND result IS NULL"

    def ddl(self, *, marked: bool = True) -> str:
        """See `Dialect`. An index of an attached database is named with it, and its table is not."""
        fingerprint = f",\n    fingerprint {self.mark_type}" if marked else ""
        index = self.table_name.quoted(self.quote)[:-1] + '_at"'
        return (
            f"CREATE TABLE {self.table} (\n"
            "    id BLOB NOT NULL PRIMARY KEY,\n"
            "    at INTEGER NOT NULL,\n"
            f"    result BLOB{fingerprint}\n"
            ") WITHOUT ROWID;\n"
            f'CREATE INDEX {index} ON "{self.table_name.table}" (at);\n'
        )

    def columns_statement(self) -> Statement:
        """See `Dialect`."""
        return Statement(
            "SELECT name, type FROM pragma_table_info(?, ?)",
            (self.table_name.table, self.table_name.schema or "main"),
        )

    def unique_id(self) -> Statement:
        """See `Dialect`. SQLite itself refuses the insert if the id is not unique."""
        schema = self.table_name.schema or "main"
        return Statement(
            'SELECT 1 FROM pragma_index_list(?, ?) AS found WHERE found."unique" '
            "AND NOT found.partial AND (SELECT group_concat(name) FROM pragma_index_info(found.name, ?)) = 'id'",
            (self.table_name.table, schema, schema),
        )

    def insert(self, ids: Sequence[bytes], marks: Marks) -> Flow[set[bytes]]:
        """See `Dialect`."""
        columns, place = ("id, at, fingerprint", f"(?, {_NOW}, ?)") if marks else ("id, at", f"(?, {_NOW})")
        places = ", ".join([place] * len(ids))
        done = yield Statement(
            f"INSERT INTO {self.table} ({columns}) VALUES {places} ON CONFLICT (id) DO NOTHING RETURNING id",
            tuple(value for each in ids for value in ((each, marks.get(each)) if marks else (each,))),
        )
        return {bytes(row[0]) for row in done.rows}

    def insert_unless_busy(self, row_id: bytes, mark: bytes | None) -> Flow[bool]:
        """See `Dialect`. A transaction that may write has no twin in flight."""
        return bool((yield self.insert_one(row_id, mark)).count)

    def kept(self, ids: Sequence[bytes], *, marked: bool) -> Flow[dict[bytes, Kept]]:
        """See `Dialect`."""
        places = ", ".join("?" * len(ids))
        fingerprint = "fingerprint" if marked else "NULL"
        found = yield Statement(
            f"SELECT id, result, {fingerprint} FROM {self.table} WHERE id IN ({places})", tuple(ids)
        )
        return {bytes(row_id): Kept(bytes(result or b""), mark) for row_id, result, mark in found.rows}

    def purge(self, keep: float, size: int) -> Flow[int | None]:
        """See `Dialect`. There is one writer, so no other process is purging."""
        done = yield Statement(
            f"DELETE FROM {self.table} WHERE id IN "
            f"(SELECT id FROM {self.table} WHERE at < {_NOW} - ? ORDER BY at LIMIT {size:d})",
            (round(keep * 1000),),
        )
        return done.count

    def size(self) -> Statement:
        """See `Dialect`. The size is the database's: not every build of SQLite shows a table's size."""
        return Statement("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
