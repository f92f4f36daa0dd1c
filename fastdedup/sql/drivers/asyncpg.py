"""asyncpg: a connection, or a connection of a pool."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import asyncpg

from ..dialects.base import Rows, Statement
from .base import Driver, closed, driver_for, no_transaction, placed


class AsyncpgDriver(Driver):
    """A connection in a transaction, begun by `connection.transaction()`."""

    is_async = True
    dialect = "asyncpg"

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        # The connection inside a pool's proxy, because the proxy costs a microsecond for each call; None once it was
        # given back to the pool.
        self._inner = inner = getattr(connection, "_con", connection)
        if inner is None or inner.is_closed():
            raise closed()
        if not inner.is_in_transaction():
            raise no_transaction("async with connection.transaction():")
        # The transaction that commits; None if BEGIN was sent by hand, or if asyncpg does not show it.
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

    def is_lost(self) -> bool:
        """See `Driver`."""
        return bool(self._inner.is_closed())

    async def execute(self, statement: Statement) -> Rows:
        """See `Driver`. asyncpg returns rows from one method, and the count of changed rows from another."""
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


driver = driver_for(
    "asyncpg",
    # The proxy first: asyncpg's own check of a connection costs one more call.
    {asyncpg.pool.PoolConnectionProxy: AsyncpgDriver, asyncpg.Connection: AsyncpgDriver},
    "async with pool.acquire() as connection, connection.transaction():",
)
