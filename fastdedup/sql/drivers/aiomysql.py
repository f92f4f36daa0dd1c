"""aiomysql."""

from __future__ import annotations

from typing import Any

import aiomysql

from ..dialects.base import Rows, Statement
from .base import driver_for, placed
from .pymysql import MySQLDriver


class QuietCursor(aiomysql.Cursor):  # type: ignore[misc]
    """Does not fetch the warning that `INSERT IGNORE` leaves for each duplicate, so Python does not warn of it."""

    async def _show_warnings(self, _: Any) -> None:
        return


class AiomysqlDriver(MySQLDriver):
    """A connection."""

    is_async = True

    def __init__(self, connection: Any) -> None:
        super().__init__(connection, is_closed=connection.closed, begin="await connection.begin()")

    def is_open(self) -> bool:
        """See `Driver`."""
        return not self._connection.closed and bool(self._connection.get_transaction_status())

    def is_lost(self) -> bool:
        """See `Driver`."""
        return bool(self._connection.closed)

    async def execute(self, statement: Statement) -> Rows:
        """See `Driver`."""
        async with self._connection.cursor(QuietCursor) as cursor:
            await cursor.execute(placed(statement.sql, "%s"), statement.parameters)
            return Rows(await cursor.fetchall() if cursor.description else (), cursor.rowcount)


driver = driver_for("aiomysql", {aiomysql.Connection: AiomysqlDriver})
