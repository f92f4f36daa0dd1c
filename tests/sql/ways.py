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
    def connect(self) -> Any:
        """Return what an inbox is given, or what gives it if it is awaited."""

    @abstractmethod
    def close_raw(self) -> Any: ...

    @abstractmethod
    def start_raw(self) -> Any: ...

    @abstractmethod
    def _commit(self) -> Any: ...

    @abstractmethod
    def _rollback(self) -> Any: ...

    def inbox(self, name: str = "tests", *, keep: float = WEEK, **options: Any) -> Any:
        """Make the inbox for such a connection."""
        return self.inbox_kind(name, keep=keep, **options)

    async def __aenter__(self) -> Self:
        self.raw = await self.call(self.connect)
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
        cursor = await self.call(self.raw.execute, statement)
        return list(await self.call(cursor.fetchall)) if cursor.description else []

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


async def sql_by_cursor(party: Party, statement: str, *kind: type[Any]) -> list[Any]:
    """Run a statement on a connection that has no `execute`; give its rows."""
    cursor = await party.call(party.raw.cursor, *kind)
    try:
        await party.call(cursor.execute, statement)
        return list(await party.call(cursor.fetchall)) if cursor.description else []
    finally:
        await party.call(cursor.close)


# SQLAlchemy


@cache
def engine_of(url: str, **options: Any) -> Any:
    return create_engine(url, poolclass=NullPool, **options)


@cache
def async_engine_of(url: str, **options: Any) -> Any:
    return create_async_engine(url, poolclass=NullPool, **options)


class OfSqlAlchemy(ConnectionParty):
    """A connection of SQLAlchemy's."""

    driver: ClassVar[str]
    engine_of: ClassVar[Callable[..., Any]]

    @property
    def engine(self) -> Any:
        return type(self).engine_of(self.place.database.urls[self.driver], **self.options)

    def connect(self) -> Any:
        return self.engine.connect()

    async def sql(self, statement: str) -> list[Any]:
        result = await self.call(self.raw.execute, text(statement))
        return [tuple(row) for row in await self.call(result.fetchall)] if result.returns_rows else []


class SqlAlchemyParty(OfSqlAlchemy, SyncParty):
    engine_of = engine_of


class SessionParty(SqlAlchemyParty):
    def connect(self) -> Any:
        return Session(self.engine)


class AsyncSqlAlchemyParty(OfSqlAlchemy, AsyncParty):
    engine_of = async_engine_of


class AsyncSessionParty(AsyncSqlAlchemyParty):
    def connect(self) -> Any:
        return AsyncSession(self.engine)


# Bare drivers: PostgreSQL


class AsyncpgParty(ConnectionParty, AsyncParty):
    def connect(self) -> Any:
        return asyncpg.connect(**self.place.database.asyncpg)

    def start_raw(self) -> Any:
        self._transaction = self.raw.transaction(**self.options)
        return self._transaction.start()

    def _commit(self) -> Any:
        return self._transaction.commit()

    def _rollback(self) -> Any:
        return self._transaction.rollback()

    async def sql(self, statement: str) -> list[Any]:
        return [tuple(row) for row in await self.raw.fetch(statement)]


class OfPsycopg(ConnectionParty):
    connection: ClassVar[type[Any]]

    def connect(self) -> Any:
        return self.connection.connect(**self.place.database.psycopg, **self.options)

    def start_raw(self) -> None:
        """Nothing to do: the first statement begins."""


class PsycopgParty(OfPsycopg, SyncParty):
    connection = psycopg.Connection


class AsyncPsycopgParty(OfPsycopg, AsyncParty):
    connection = psycopg.AsyncConnection


# Bare drivers: SQLite


class OfSqlite(ConnectionParty):
    driver: ClassVar[Any]

    def connect(self) -> Any:
        return self.driver.connect(self.place.database.file, isolation_level=None, **self.options)

    def start_raw(self) -> Any:
        return self.raw.execute("BEGIN IMMEDIATE")


class Sqlite3Party(OfSqlite, SyncParty):
    driver = sqlite3


class AiosqliteParty(OfSqlite, AsyncParty):
    driver = aiosqlite


# Bare drivers: MariaDB


class PyMySQLParty(ConnectionParty, SyncParty):
    def connect(self) -> Any:
        return pymysql.connect(**self.place.database.pymysql, **self.options)

    def close_raw(self) -> None:
        if self.raw.open:
            self.raw.close()

    async def sql(self, statement: str) -> list[Any]:
        return await sql_by_cursor(self, statement, pymysql.cursors.Cursor)


class AiomysqlParty(ConnectionParty, AsyncParty):
    def connect(self) -> Any:
        return aiomysql.connect(**self.place.database.aiomysql, **self.options)

    async def sql(self, statement: str) -> list[Any]:
        return await sql_by_cursor(self, statement, aiomysql.Cursor)


# Django


class DjangoParty(ConnectionParty, SyncParty):
    def connect(self) -> Any:
        alias = alias_of(self.place)
        self._atomic = partial(transaction.atomic, using=alias)
        return connections[alias]

    def start_raw(self) -> None:
        self._block = self._atomic()
        self._block.__enter__()

    def _commit(self) -> None:
        self._block.__exit__(None, None, None)

    def _rollback(self) -> None:
        self.raw.set_rollback(True)
        self._block.__exit__(None, None, None)

    async def sql(self, statement: str) -> list[Any]:
        return await sql_by_cursor(self, statement)


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
