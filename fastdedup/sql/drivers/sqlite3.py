"""The standard library's sqlite3."""

from __future__ import annotations

import sqlite3
from typing import Any

from ...errors import UsageError
from ..dialects.base import Rows, Statement
from .base import Driver, closed, driver_for, no_transaction, of_cursor


def commits_each_statement(connection: Any) -> bool:
    """True if a connection commits each statement by itself. Raises UsageError if it is closed.

    A connection with an `isolation_level` (the default) begins with its first change.
    """
    try:
        begun = connection.in_transaction
    except (ValueError, sqlite3.ProgrammingError):
        raise closed() from None
    try:
        own = getattr(connection, "autocommit", -1)  # Python 3.12: True, False, or the older behaviour
    except sqlite3.ProgrammingError:  # of another thread: its next statement fails, too
        own = -1
    commits = own is True or (own is not False and connection.isolation_level is None)
    return bool(commits and not begun)


async def commits_each_in_its_thread(connection: Any) -> bool:
    """Like `commits_each_statement`, for aiosqlite: only the thread of its connection may read `autocommit`."""
    if is_begun(connection):
        return False
    return bool(await connection._execute(commits_each_statement, connection._conn))


def is_begun(connection: Any) -> bool:
    """True if a connection is in a transaction; False also if it is closed."""
    try:
        return bool(connection.in_transaction)
    except (ValueError, sqlite3.ProgrammingError):
        return False


def no_immediate() -> UsageError:
    """Return the error for a connection that is in no transaction."""
    return no_transaction('connection.execute("BEGIN IMMEDIATE")')


class SQLiteDriver(Driver):
    """The part that the drivers of sqlite3 and aiosqlite share."""

    dialect = "sqlite"

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        if commits_each_statement(connection):
            raise no_immediate()

    def is_open(self) -> bool:
        """See `Driver`."""
        return is_begun(self._connection)


class Sqlite3Driver(SQLiteDriver):
    """A connection."""

    is_async = False

    def execute(self, statement: Statement) -> Rows:
        """See `Driver`."""
        cursor = self._connection.cursor()
        cursor.row_factory = None  # the caller's own may give rows without an order
        cursor.execute(statement.sql, statement.parameters)
        return of_cursor(cursor)


driver = driver_for("sqlite3", {sqlite3.Connection: Sqlite3Driver})
