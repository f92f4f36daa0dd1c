"""psycopg 3: a connection, synchronous or async."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from ..dialects.base import Rows, Statement
from .base import Driver, closed, driver_for, no_transaction, of_cursor, placed


class PsycopgDriver(Driver):
    """The part that both drivers share. A connection that does not commit by itself begins with its first statement.

    The cursor is psycopg's own: the connection's may use other placeholders than `%s`, or other rows than tuples.
    """

    dialect = "postgresql"

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        if connection.closed:
            raise closed()
        if connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE:
            raise no_transaction("with connection.transaction():")

    def is_open(self) -> bool:
        """See `Driver`."""
        return (
            not self._connection.closed
            and self._connection.info.transaction_status is not TransactionStatus.IDLE
        )

    def is_lost(self) -> bool:
        """See `Driver`."""
        return bool(self._connection.closed)

    def _is_pipelined(self) -> bool:
        """True if a statement's rows only come after the pipeline is synchronised."""
        return self._connection.info.pipeline_status is not PipelineStatus.OFF


class SyncDriver(PsycopgDriver):
    """A `Connection`."""

    is_async = False

    def execute(self, statement: Statement) -> Rows:
        """See `Driver`."""
        with psycopg.Cursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.execute(placed(statement.sql, "%s"), statement.parameters)
            if self._is_pipelined():
                with self._connection.pipeline() as pipeline:
                    pipeline.sync()
            return of_cursor(cursor)


class AsyncDriver(PsycopgDriver):
    """An `AsyncConnection`."""

    is_async = True

    async def execute(self, statement: Statement) -> Rows:
        """See `Driver`."""
        async with psycopg.AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            await cursor.execute(placed(statement.sql, "%s"), statement.parameters)
            if self._is_pipelined():
                async with self._connection.pipeline() as pipeline:
                    await pipeline.sync()
            return Rows(await cursor.fetchall() if cursor.description else (), cursor.rowcount)


driver = driver_for(
    "psycopg",
    {psycopg.AsyncConnection: AsyncDriver, psycopg.Connection: SyncDriver},
    "with pool.connection() as connection:",
)
