"""The standard library's sqlite3."""

from __future__ import annotations

import sqlite3
from typing import Any

from ...errors import UsageError
from ..dialects.base import Rows, Statement
from .base import Driver, no_transaction, of_cursor


def commits_each_statement(connection: Any) -> bool:
    """True where a connection commits each statement by itself. Raises UsageError where it is closed.

    One with an `isolation_level`, as it is by default, begins with its first change.
    """
    try:
        begun = connection.in_transaction
    except (ValueError, sqlite3.ProgrammingError):
        raise UsageError("this connection is closed: give the inbox one that is in a transaction") from None
    own = getattr(connection, "autocommit", -1)  # Python 3.12: True, False, or as before
    commits = own is True or (own is not False and connection.isolation_level is None)
    return bool(commits and not begun)


def check(connection: Any) -> None:
    """Raise UsageError where a connection commits each statement by itself, or is closed."""
    if commits_each_statement(connection):
        raise no_transaction('connection.execute("BEGIN IMMEDIATE")')


def is_begun(connection: Any) -> bool:
    """True where a connection is in a transaction; False also where it is closed."""
    try:
        return bool(connection.in_transaction)
    except (ValueError, sqlite3.ProgrammingError):
        return False


class Sqlite3Driver(Driver):
    """A connection."""

    is_async = False
    dialect = "sqlite"

    def __init__(self, connection: Any) -> None:
        check(connection)
        self._connection = connection

    def is_open(self) -> bool:
        """See `Driver`."""
        return is_begun(self._connection)

    def execute(self, statement: Statement) -> Rows:
        """See `Driver`."""
        cursor = self._connection.cursor()
        cursor.row_factory = None  # the caller's own may give rows without an order
        cursor.execute(statement.sql, statement.parameters)
        return of_cursor(cursor)


def driver(transaction: Any) -> Driver:
    """Return the driver for a connection."""
    if not isinstance(transaction, sqlite3.Connection):
        raise UsageError(
            f"an inbox needs a connection in a transaction, got sqlite3's {type(transaction).__name__}"
        )
    return Sqlite3Driver(transaction)
