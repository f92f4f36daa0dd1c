"""aiosqlite."""

from __future__ import annotations

from typing import Any

import aiosqlite

from ...errors import UsageError
from ..dialects.base import Rows, Statement
from .base import Driver
from .sqlite3 import check, is_begun


class AiosqliteDriver(Driver):
    """A connection."""

    is_async = True
    dialect = "sqlite"

    def __init__(self, connection: Any) -> None:
        check(connection)
        self._connection = connection

    def is_open(self) -> bool:
        """See `Driver`."""
        return is_begun(self._connection)

    async def execute(self, statement: Statement) -> Rows:
        """See `Driver`."""
        async with self._connection.cursor() as cursor:
            cursor.row_factory = None  # the caller's own may give rows without an order
            await cursor.execute(statement.sql, statement.parameters)
            rows = await cursor.fetchall() if cursor.description else ()
            return Rows(list(rows), cursor.rowcount)


def driver(transaction: Any) -> Driver:
    """Return the driver for a connection."""
    if not isinstance(transaction, aiosqlite.Connection):
        raise UsageError(
            f"an inbox needs a connection in a transaction, got aiosqlite's {type(transaction).__name__}"
        )
    return AiosqliteDriver(transaction)
