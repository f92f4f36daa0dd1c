"""aiomysql."""

from __future__ import annotations

from typing import Any

import aiomysql

from ...errors import UsageError
from ..dialects.base import Database, Rows, Statement
from .base import Driver, no_transaction, placed


class QuietCursor(aiomysql.Cursor):  # type: ignore[misc]
    """Does not ask for the warning that `INSERT IGNORE` leaves for each duplicate, to make a Python warning of it."""

    async def _show_warnings(self, _: Any) -> None:
        return


class AiomysqlDriver(Driver):
    """A connection. One that does not commit by itself, as is the default, begins with its first statement."""

    is_async = True
    dialect = "mysql"

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        if connection.closed:
            raise UsageError("this connection is closed: give the inbox one that is in a transaction")
        if connection.get_autocommit() and not self.is_open():
            raise no_transaction("await connection.begin()")

    @property
    def database(self) -> Database:
        """See `Driver`."""
        connection = self._connection
        return (self.dialect, connection.host, connection.port, connection.unix_socket, connection.db)

    def is_open(self) -> bool:
        """See `Driver`."""
        return not self._connection.closed and bool(self._connection.get_transaction_status())

    async def execute(self, statement: Statement) -> Rows:
        """See `Driver`."""
        async with self._connection.cursor(QuietCursor) as cursor:
            await cursor.execute(placed(statement.sql, "%s"), statement.parameters)
            return Rows(await cursor.fetchall() if cursor.description else (), cursor.rowcount)


def driver(transaction: Any) -> Driver:
    """Return the driver for a connection."""
    if not isinstance(transaction, aiomysql.Connection):
        raise UsageError(
            f"an inbox needs a connection in a transaction, got aiomysql's {type(transaction).__name__}"
        )
    return AiomysqlDriver(transaction)
