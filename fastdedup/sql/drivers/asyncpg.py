"""asyncpg: a connection, or one that a pool lends."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import asyncpg

from ...errors import UsageError
from ..dialects.base import Rows, Statement
from .base import Driver, no_transaction, placed


class AsyncpgDriver(Driver):
    """A connection in a transaction, begun by `connection.transaction()`."""

    is_async = True
    dialect = "asyncpg"

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        # A pool's proxy costs a microsecond for each call, so the connection inside is asked; None once it was given
        # back to the pool.
        self._inner = inner = getattr(connection, "_con", connection)
        if inner is None or inner.is_closed():
            raise UsageError("this connection is closed: give the inbox one that is in a transaction")
        if not inner.is_in_transaction():
            raise no_transaction("async with connection.transaction():")
        # The transaction that commits; None where BEGIN was sent by hand, or where asyncpg does not tell.
        self._outermost = getattr(inner, "_top_xact", None)

    def is_open(self) -> bool:
        """See `Driver`."""
        inner = self._inner
        return (
            getattr(self._connection, "_con", inner) is inner
            and not inner.is_closed()
            and bool(inner.is_in_transaction())
            and getattr(inner, "_top_xact", None) is self._outermost
        )

    async def execute(self, statement: Statement) -> Rows:
        """See `Driver`. asyncpg gives rows by one call, and the count of changed rows by another."""
        sql, has_rows = _prepared(statement.sql)
        if has_rows:
            rows = await self._inner.fetch(sql, *statement.parameters)
            return Rows(rows, len(rows))
        return _changed(await self._inner.execute(sql, *statement.parameters))


@lru_cache(64)
def _changed(status: str) -> Rows:
    """Return how many rows a statement has changed, from its status: "INSERT 0 1", "UPDATE 1", "SAVEPOINT"."""
    number = status.rpartition(" ")[2]
    return Rows((), int(number) if number.isdecimal() else 0)


@lru_cache(256)
def _prepared(sql: str) -> tuple[str, bool]:
    """Return a statement for asyncpg, and whether it gives rows."""
    return placed(sql, "$"), sql.startswith("SELECT") or sql.endswith("RETURNING id")


def driver(transaction: Any) -> Driver:
    """Return the driver for a connection."""
    # The proxy first: asyncpg's own check of what is a connection is a call more.
    if not isinstance(transaction, (asyncpg.pool.PoolConnectionProxy, asyncpg.Connection)):
        raise UsageError(
            f"an inbox needs a connection in a transaction, got asyncpg's {type(transaction).__name__}: "
            "async with pool.acquire() as connection, connection.transaction():"
        )
    return AsyncpgDriver(transaction)
