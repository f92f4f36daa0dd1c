"""aiosqlite."""

from __future__ import annotations

import aiosqlite

from ..dialects.base import Rows, Statement
from .base import driver_for
from .sqlite3 import SQLiteDriver, commits_each_in_its_thread, no_immediate


class AiosqliteDriver(SQLiteDriver):
    """A connection."""

    is_async = True

    async def execute(self, statement: Statement) -> Rows:
        """See `Driver`. The first statement would begin the transaction, unless the connection commits each one."""
        if not self.is_open() and await commits_each_in_its_thread(self._connection):
            raise no_immediate()
        async with self._connection.cursor() as cursor:
            cursor.row_factory = None  # the caller's own may give rows without an order
            await cursor.execute(statement.sql, statement.parameters)
            rows = await cursor.fetchall() if cursor.description else ()
            return Rows(list(rows), cursor.rowcount)


driver = driver_for("aiosqlite", {aiosqlite.Connection: AiosqliteDriver})
