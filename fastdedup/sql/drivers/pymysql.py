"""PyMySQL."""

from __future__ import annotations

from typing import Any

from pymysql.connections import Connection
from pymysql.constants.SERVER_STATUS import SERVER_STATUS_IN_TRANS
from pymysql.cursors import Cursor

from ..dialects.base import Database, Rows, Statement
from .base import Driver, closed, driver_for, no_transaction, of_cursor, placed


class MySQLDriver(Driver):
    """The part that the drivers of PyMySQL and aiomysql share.

    A connection that does not commit by itself (the default) begins with its first statement.

    Args:
        is_closed: the connection is closed.
        begin: the way to begin a transaction, for the error.
    """

    dialect = "mysql"

    def __init__(self, connection: Any, *, is_closed: bool, begin: str) -> None:
        self._connection = connection
        if is_closed:
            raise closed()
        if connection.get_autocommit() and not self.is_open():
            raise no_transaction(begin)

    @property
    def database(self) -> Database:
        """See `Driver`."""
        connection = self._connection
        return (self.dialect, connection.host, connection.port, connection.unix_socket, connection.db)


class PyMySQLDriver(MySQLDriver):
    """A connection."""

    is_async = False

    def __init__(self, connection: Any) -> None:
        super().__init__(connection, is_closed=not connection.open, begin="connection.begin()")

    def is_open(self) -> bool:
        """See `Driver`."""
        return self._connection.open and bool(self._connection.server_status & SERVER_STATUS_IN_TRANS)

    def is_lost(self) -> bool:
        """See `Driver`."""
        return not self._connection.open

    def execute(self, statement: Statement) -> Rows:
        """See `Driver`."""
        with self._connection.cursor(Cursor) as cursor:
            cursor.execute(placed(statement.sql, "%s"), statement.parameters)
            return of_cursor(cursor)


driver = driver_for("PyMySQL", {Connection: PyMySQLDriver})
