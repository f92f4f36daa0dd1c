"""SQLAlchemy 2: sessions and connections, synchronous and async, over any of its drivers."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import InvalidRequestError, PendingRollbackError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from ...errors import UsageError
from ..dialects.base import Database, Rows, Statement
from ..faults import aborted
from . import sqlite3
from .base import Driver, no_transaction, placed

_AUTOCOMMIT = "AUTOCOMMIT"
_STYLES = {"qmark": "?", "numeric_dollar": "$"}
"""The placeholders of drivers, by their `paramstyle`; all others take "%s"."""


def driver(transaction: Any) -> Driver:
    """Return the driver for a session or a connection."""
    if isinstance(transaction, scoped_session | async_scoped_session):
        transaction = transaction()
    if isinstance(transaction, AsyncSession):
        return AsyncDriver(transaction, transaction.sync_session)
    if isinstance(transaction, AsyncConnection):
        return AsyncDriver(transaction, transaction.sync_connection)
    if isinstance(transaction, Session | Connection):
        return SyncDriver(transaction)
    raise UsageError(
        f"an inbox needs the caller's own transaction, got SQLAlchemy's {type(transaction).__name__}: give it what "
        "engine.begin() or Session.begin() yields"
    )


class SyncDriver(Driver):
    """A `Session`, or a `Connection`; it is also in the async ones."""

    is_async = False

    def __init__(self, inner: Any) -> None:
        if inner is None or getattr(inner, "closed", False):
            raise UsageError(
                "this connection is closed: give the inbox what engine.begin() yields, inside the block"
            )
        self._inner = inner
        bind = _bind(inner)
        self.dialect = str(bind.dialect.name)
        self._engine = bind.engine
        self._style = _STYLES.get(bind.dialect.dbapi.paramstyle, "%s")
        # Mutable: the transaction and its connection, once begun. A session begins it with its first statement.
        self._root: Any = None
        self._connection: Connection | None = None

    @property
    def database(self) -> Database:
        """See `Driver`. If a function of the caller makes the connections, the pool distinguishes the engines."""
        url = self._engine.url
        return (self.dialect, url.host, url.port, url.database, id(self._engine.pool))

    def is_open(self) -> bool:
        """See `Driver`. After a commit a session has another transaction, or none."""
        root = self._inner.get_transaction()
        return root is not None and root is self._root and root.is_active

    def is_nested(self) -> bool:
        """See `Driver`."""
        return bool(self._inner.in_nested_transaction())

    def is_lost(self) -> bool:
        """See `Driver`."""
        return self._connection is not None and self._connection.invalidated

    def may_be_committed(self) -> bool:
        """See `Driver`. A listener may be on the session, its class, or its `sessionmaker`."""
        if not isinstance(self._inner, Session):
            return False
        return bool(self._inner.dispatch.after_commit or self._inner.dispatch.after_transaction_end)

    def flush(self) -> Any:
        """See `Driver`."""
        if self._has_unsent():
            self._inner.flush()

    def _has_unsent(self) -> bool:
        inner = self._inner
        has_unsent = isinstance(inner, Session) and bool(inner.new or inner.dirty or inner.deleted)
        return has_unsent and self.is_open()

    def execute(self, statement: Statement) -> Any:
        """Run a statement on the connection of the transaction, which begins with it.

        The driver gets its text unchanged. SQLAlchemy would compile it with the types of its parameters, which takes
        a third of the statement's time.
        """
        try:
            connection = self._begun()
            if self._root is None and _commits_each_statement(connection):
                raise no_transaction("engine.begin() on an engine without isolation_level='AUTOCOMMIT'")
            result = connection.exec_driver_sql(placed(statement.sql, self._style), statement.parameters)
        except InvalidRequestError as error:
            raise _unusable(error) from error
        if self._root is None:
            self._root, self._connection = self._inner.get_transaction(), connection
        return Rows(result.all() if result.returns_rows else (), result.rowcount)

    def _begun(self) -> Connection:
        """Begin a transaction if there is none yet; SQLAlchemy itself does this with the first statement."""
        inner = self._inner
        if isinstance(inner, Session):
            return inner.connection()
        if not inner.in_transaction():
            inner.begin()
        return inner  # type: ignore[no-any-return]


class AsyncDriver(SyncDriver):
    """An `AsyncSession`, or an `AsyncConnection`. `inner`: the synchronous one in it."""

    is_async = True

    def __init__(self, transaction: Any, inner: Any) -> None:
        super().__init__(inner)
        self._transaction = transaction

    async def execute(self, statement: Statement) -> Any:
        """See `Driver`."""
        execute = super().execute
        return await self._transaction.run_sync(lambda _: execute(statement))

    def flush(self) -> Any:
        """See `Driver`."""
        return self._transaction.flush() if self._has_unsent() else None


def _unusable(error: InvalidRequestError) -> UsageError:
    """Return the error for a session or connection that takes no statement now."""
    if isinstance(error, PendingRollbackError):
        return aborted()
    return UsageError(f"SQLAlchemy takes no statement in this transaction: {error}")


def _bind(inner: Any) -> Any:
    if isinstance(inner, Connection):
        return inner
    try:
        return inner.get_bind()
    except InvalidRequestError:
        raise UsageError(
            "this session has no engine that all its tables share: give the inbox a connection, from "
            "session.connection(bind_arguments={'mapper': …})"
        ) from None


def _commits_each_statement(connection: Connection) -> bool:
    if connection.get_execution_options().get("isolation_level") == _AUTOCOMMIT:
        return True
    if connection.dialect.name == "sqlite":  # often without an isolation_level, and begun by an event
        if connection.dialect.is_async:
            adapted: Any = connection.connection.dbapi_connection
            return bool(adapted.run_async(sqlite3.commits_each_in_its_thread))
        return sqlite3.commits_each_statement(connection.connection.driver_connection)
    detect = getattr(connection.dialect, "detect_autocommit_setting", None)
    if detect is None:  # before SQLAlchemy 2.0.44
        return getattr(connection.dialect, "_on_connect_isolation_level", None) == _AUTOCOMMIT
    try:
        return bool(detect(connection.connection.dbapi_connection))
    except NotImplementedError:
        return False
