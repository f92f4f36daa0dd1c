"""PyMySQL."""

from __future__ import annotations

from typing import Any

from pymysql.connections import Connection
from pymysql.constants.SERVER_STATUS import SERVER_STATUS_IN_TRANS
from pymysql.cursors import Cursor

from ...errors import UsageError
from ..dialects.base import Database, Rows, Statement
from .base import Driver, no_transaction, of_cursor, placed


class PyMySQLDriver(Driver):
    """A connection. One that does not commit by itself begins with its first statement."""

    is_async = False
    dialect = "mysql"

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        if not connection.open:
            raise UsageError("this connection is closed: give the inbox one that is in a transaction")
        if connection.get_autocommit() and not self.is_open():
            raise no_transaction("connection.begin()")

    @property
    def database(self) -> Database:
        """See `Driver`."""
        connection = self._connection
        return (self.dialect, connection.host, connection.port, connection.unix_socket, connection.db)

    def is_open(self) -> bool:
        """See `Driver`."""
        return self._connection.open and bool(self._connection.server_status & SERVER_STATUS_IN_TRANS)

    def execute(self, statement: Statement) -> Rows:
        """See `Driver`."""
        with self._connection.cursor(Cursor) as cursor:
            cursor.execute(placed(statement.sql, "%s"), statement.parameters)
            return of_cursor(cursor)


def driver(transaction: Any) -> Driver:
    """Return the driver for a connection."""
    if not isinstance(transaction, Connection):
        raise UsageError(
            f"an inbox needs a connection in a transaction, got PyMySQL's {type(transaction).__name__}"
        )
    return PyMySQLDriver(transaction)
