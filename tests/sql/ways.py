"""Every way into a database that an inbox serves: a row of `WAYS` each, so that each test is written once.

A `Party` is what an application has in its hand: one connection, or one session. Synchronous ones have a thread of
their own, as connections of SQLite and Django belong to one.
"""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache, partial, wraps
from inspect import isawaitable
from threading import get_ident
from typing import Any, ClassVar, Self

import aiomysql
import aiosqlite
import asyncpg
import psycopg
import pymysql
from django.db import connections, transaction
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from fastdedup.sql import Inbox
from fastdedup.sync.sql import Inbox as SyncInbox

from ..integrations import django_project  # noqa: F401 -- it configures Django
from .places import Place

WEEK = 7 * 86_400.0


class Party(ABC):
    """One connection, or session. `raw` is what an inbox is given."""

    inbox_kind: ClassVar[type[Any]]
    raw: Any

    def __init__(self, place: Place, **options: Any) -> None:
        self.place = place
        self.options = options

    @abstractmethod
    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of the inbox, of a receipt or of the connection, as the application would."""

    @abstractmethod
    def _open(self) -> Any: ...

    @abstractmethod
    def close_raw(self) -> Any: ...

    @abstractmethod
    def start_raw(self) -> Any: ...

    @abstractmethod
    def _commit(self) -> Any: ...

    @abstractmethod
    def _rollback(self) -> Any: ...

    @abstractmethod
    def send_sql(self, statement: str) -> Any: ...

    def inbox(self, name: str = "tests", *, keep: float = WEEK, **options: Any) -> Any:
        """Make the inbox for such a connection."""
        return self.inbox_kind(name, keep=keep, **options)

    async def __aenter__(self) -> Self:
        await self.call(self._open)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.call(self.close_raw)

    async def start(self) -> None:
        await self.call(self.start_raw)

    async def commit(self) -> None:
        await self.call(self._commit)

    async def rollback(self) -> None:
        await self.call(self._rollback)

    async def sql(self, statement: str) -> list[Any]:
        """Run a statement in the transaction; give its rows."""
        rows: list[Any] = await self.call(self.send_sql, statement)
        return rows

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Begin a transaction, and commit it; roll it back on an error."""
        await self.start()
        try:
            yield
        except BaseException:
            await self.rollback()
            raise
        await self.commit()

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        """Begin a transaction as `Session.begin` does, for async parties: yields what an inbox is given."""
        async with self.transaction():
            yield self.raw

    @property
    def beginning(self) -> Any:
        """What begins a transaction for an inbox of such a connection."""
        return self.begin

    def own(self, work: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        """Return work, which awaits nothing but this party, as a function of the kind that its inbox takes."""
        return work

    async def work(self, note: str) -> None:
        """Do the business: one row."""
        await self.sql(f"INSERT INTO work (note) VALUES ('{note}')")

    async def receive(self, inbox: Any, key: str, **options: Any) -> Any:
        return await self.call(inbox.receive, self.raw, key, **options)


class AsyncParty(Party):
    inbox_kind = Inbox

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return await result if isawaitable(result) else result


class SyncParty(Party):
    inbox_kind = SyncInbox

    def __init__(self, place: Place, **options: Any) -> None:
        super().__init__(place, **options)
        self._thread = ThreadPoolExecutor(1, initializer=lambda: setattr(self, "_ident", get_ident()))
        self._ident = 0

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if get_ident() == self._ident:
            return function(*args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, partial(function, *args, **kwargs)
        )

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        self._thread.shutdown()

    @contextmanager
    def begin_now(self) -> Iterator[Any]:
        """Begin a transaction as `Session.begin` does, in the party's thread."""
        self.start_raw()
        try:
            yield self.raw
        except BaseException:
            self._rollback()
            raise
        self._commit()

    @property
    def beginning(self) -> Any:
        return self.begin_now

    def own(self, work: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        @wraps(work)
        def now(*args: Any, **kwargs: Any) -> Any:
            try:
                work(*args, **kwargs).send(None)
            except StopIteration as end:  # in the party's own thread each call of it returns at once
                return end.value
            raise AssertionError("it awaits something else")

        return now


class ConnectionParty(Party):
    """A connection, or session, with the names that most drivers have. An async driver's methods are awaited."""

    def close_raw(self) -> Any:
        return self.raw.close()

    def start_raw(self) -> Any:
        return self.raw.begin()

    def _commit(self) -> Any:
        return self.raw.commit()

    def _rollback(self) -> Any:
        return self.raw.rollback()


# SQLAlchemy


@cache
def engine_of(url: str, **options: Any) -> Any:
    return create_engine(url, poolclass=NullPool, **options)


@cache
def async_engine_of(url: str, **options: Any) -> Any:
    return create_async_engine(url, poolclass=NullPool, **options)


class SqlAlchemyParty(ConnectionParty, SyncParty):
    driver: ClassVar[str]

    @property
    def engine(self) -> Any:
        return engine_of(self.place.database.urls[self.driver], **self.options)

    def _open(self) -> None:
        self.raw = self.engine.connect()

    def send_sql(self, statement: str) -> list[Any]:
        result = self.raw.execute(text(statement))
        return [tuple(row) for row in result] if result.returns_rows else []


class SessionParty(SqlAlchemyParty):
    def _open(self) -> None:
        self.raw = Session(self.engine)


class AsyncSqlAlchemyParty(ConnectionParty, AsyncParty):
    driver: ClassVar[str]

    @property
    def engine(self) -> Any:
        return async_engine_of(self.place.database.urls[self.driver], **self.options)

    async def _open(self) -> None:
        self.raw = await self.engine.connect()

    async def send_sql(self, statement: str) -> list[Any]:
        result = await self.raw.execute(text(statement))
        return [tuple(row) for row in result] if result.returns_rows else []


class AsyncSessionParty(AsyncSqlAlchemyParty):
    def _open(self) -> Any:
        self.raw = AsyncSession(self.engine)


# Bare drivers: PostgreSQL


class AsyncpgParty(ConnectionParty, AsyncParty):
    async def _open(self) -> None:
        self.raw = await asyncpg.connect(**self.place.database.asyncpg)

    def start_raw(self) -> Any:
        self._transaction = self.raw.transaction(**self.options)
        return self._transaction.start()

    def _commit(self) -> Any:
        return self._transaction.commit()

    def _rollback(self) -> Any:
        return self._transaction.rollback()

    async def send_sql(self, statement: str) -> list[Any]:
        return [tuple(row) for row in await self.raw.fetch(statement)]


class PsycopgParty(ConnectionParty, SyncParty):
    def _open(self) -> None:
        self.raw = psycopg.connect(**self.place.database.psycopg, **self.options)

    def start_raw(self) -> None:
        """Nothing to do: the first statement begins."""

    def send_sql(self, statement: str) -> list[Any]:
        cursor = self.raw.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []


class AsyncPsycopgParty(ConnectionParty, AsyncParty):
    async def _open(self) -> None:
        self.raw = await psycopg.AsyncConnection.connect(**self.place.database.psycopg, **self.options)

    def start_raw(self) -> None:
        """Nothing to do: the first statement begins."""

    async def send_sql(self, statement: str) -> list[Any]:
        cursor = await self.raw.execute(statement)
        return list(await cursor.fetchall()) if cursor.description else []


# Bare drivers: SQLite


class Sqlite3Party(ConnectionParty, SyncParty):
    def _open(self) -> None:
        self.raw = sqlite3.connect(self.place.database.file, isolation_level=None, **self.options)

    def start_raw(self) -> Any:
        return self.raw.execute("BEGIN IMMEDIATE")

    def send_sql(self, statement: str) -> list[Any]:
        return list(self.raw.execute(statement))


class AiosqliteParty(ConnectionParty, AsyncParty):
    async def _open(self) -> None:
        self.raw = await aiosqlite.connect(self.place.database.file, isolation_level=None, **self.options)

    def start_raw(self) -> Any:
        return self.raw.execute("BEGIN IMMEDIATE")

    async def send_sql(self, statement: str) -> list[Any]:
        return list(await self.raw.execute_fetchall(statement))


# Bare drivers: MariaDB


class PyMySQLParty(ConnectionParty, SyncParty):
    def _open(self) -> None:
        self.raw = pymysql.connect(**self.place.database.pymysql, **self.options)

    def close_raw(self) -> None:
        if self.raw.open:
            self.raw.close()

    def send_sql(self, statement: str) -> list[Any]:
        with self.raw.cursor(pymysql.cursors.Cursor) as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())


class AiomysqlParty(ConnectionParty, AsyncParty):
    async def _open(self) -> None:
        self.raw = await aiomysql.connect(**self.place.database.aiomysql, **self.options)

    async def send_sql(self, statement: str) -> list[Any]:
        async with self.raw.cursor(aiomysql.Cursor) as cursor:
            await cursor.execute(statement)
            return list(await cursor.fetchall())


# Django


class DjangoParty(ConnectionParty, SyncParty):
    def _open(self) -> None:
        alias = alias_of(self.place)
        self.raw = connections[alias]
        self._atomic = partial(transaction.atomic, using=alias)

    def start_raw(self) -> None:
        self._block = self._atomic()
        self._block.__enter__()

    def _commit(self) -> None:
        self._block.__exit__(None, None, None)

    def _rollback(self) -> None:
        self.raw.set_rollback(True)
        self._block.__exit__(None, None, None)

    def send_sql(self, statement: str) -> list[Any]:
        with self.raw.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []


def alias_of(place: Place) -> str:
    """Give the alias under which Django knows a database, which it learns here."""
    settings = place.database.django
    alias = f"{place.kind} {settings['NAME']}"
    if alias not in connections.settings:
        configured = connections.configure_settings({"default": {}, alias: settings})
        connections.settings[alias] = configured[alias]
    return alias


@dataclass(frozen=True, slots=True)
class Way:
    """A driver, and the kind of its database."""

    kind: str
    party: type[Party]


def over(party: type[Party], driver: str) -> type[Party]:
    """Give SQLAlchemy's party over a driver."""
    return type(f"{party.__name__}Over{driver}", (party,), {"driver": driver})


# The bare drivers come first: `ONE_EACH` takes them for the rules of a database.
WAYS = {
    "asyncpg": Way("postgresql", AsyncpgParty),
    "psycopg": Way("postgresql", PsycopgParty),
    "psycopg async": Way("postgresql", AsyncPsycopgParty),
    "sqlite3": Way("sqlite", Sqlite3Party),
    "aiosqlite": Way("sqlite", AiosqliteParty),
    "pymysql": Way("mysql", PyMySQLParty),
    "aiomysql": Way("mysql", AiomysqlParty),
    "session psycopg": Way("postgresql", over(SessionParty, "psycopg")),
    "session sqlite3": Way("sqlite", over(SessionParty, "pysqlite")),
    "session pymysql": Way("mysql", over(SessionParty, "pymysql")),
    "connection psycopg": Way("postgresql", over(SqlAlchemyParty, "psycopg")),
    "connection sqlite3": Way("sqlite", over(SqlAlchemyParty, "pysqlite")),
    "connection pymysql": Way("mysql", over(SqlAlchemyParty, "pymysql")),
    "async session asyncpg": Way("postgresql", over(AsyncSessionParty, "asyncpg")),
    "async session psycopg": Way("postgresql", over(AsyncSessionParty, "psycopg")),
    "async session aiosqlite": Way("sqlite", over(AsyncSessionParty, "aiosqlite")),
    "async session aiomysql": Way("mysql", over(AsyncSessionParty, "aiomysql")),
    "async connection asyncpg": Way("postgresql", over(AsyncSqlAlchemyParty, "asyncpg")),
    "async connection psycopg": Way("postgresql", over(AsyncSqlAlchemyParty, "psycopg")),
    "async connection aiosqlite": Way("sqlite", over(AsyncSqlAlchemyParty, "aiosqlite")),
    "async connection aiomysql": Way("mysql", over(AsyncSqlAlchemyParty, "aiomysql")),
    "django postgresql": Way("postgresql", DjangoParty),
    "django sqlite": Way("sqlite", DjangoParty),
}
ONE_EACH = ("asyncpg", "aiosqlite", "aiomysql")
"""A way into each kind of database, for rules that are the database's own."""
