"""What is given as the transaction, and cannot be used: each says what to do instead."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiomysql
import aiosqlite
import asyncpg
import pytest
from asgiref.sync import sync_to_async
from django.db import DatabaseError, connections, transaction
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.pool import NullPool

from fastdedup import ConfigError, Dedup, UsageError
from fastdedup.integrations.fastapi import Commits, everyone
from fastdedup.sql import Inbox, RetryTransaction
from fastdedup.sql.dialects import TableName, dialect_of
from fastdedup.sql.drivers import driver_of
from fastdedup.sql.rules import TABLE
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.sync.sql import Inbox as SyncInbox

from ..inbox_file import make_tables
from .conftest import Opener
from .places import Place
from .ways import WAYS, WEEK, Party, SyncParty, alias_of, engine_of

Of = Callable[[str], Opener]
ALCHEMY = [name for name in WAYS if "session" in name or "connection" in name]
COMMIT_EACH: list[tuple[str, dict[str, Any], str]] = [
    ("asyncpg", {}, "connection.transaction()"),
    ("psycopg", {"autocommit": True}, "connection.transaction()"),
    ("psycopg async", {"autocommit": True}, "connection.transaction()"),
    ("sqlite3", {}, "BEGIN IMMEDIATE"),
    ("aiosqlite", {}, "BEGIN IMMEDIATE"),
    ("pymysql", {"autocommit": True}, "connection.begin()"),
    ("aiomysql", {"autocommit": True}, "connection.begin()"),
    ("django postgresql", {}, "transaction.atomic()"),
    ("django sqlite", {}, "transaction.atomic()"),
    *((name, {"isolation_level": "AUTOCOMMIT"}, "engine.begin()") for name in ALCHEMY),
]


@pytest.mark.parametrize(("name", "options", "how"), COMMIT_EACH, ids=[each[0] for each in COMMIT_EACH])
async def test_a_connection_that_commits_each_statement_is_refused(
    of: Of, key: str, name: str, options: dict[str, Any], how: str
) -> None:
    async with of(name)(**options) as party:
        with pytest.raises(UsageError, match="is in no transaction") as caught:
            await party.receive(party.inbox(), key)
        assert how in str(caught.value)
    async with of(name)() as party, party.transaction():
        assert (await party.receive(party.inbox(), key)).first


def rows_in(path: Path) -> int:
    """Return the number of the inbox's rows that are committed."""
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {TABLE}").fetchone()[0])


class CommittingEach(sqlite3.Connection):
    """A connection that says of itself what one with `autocommit=True` does, which Python 3.11 does not have."""

    autocommit = True


AUTOCOMMIT: dict[str, Any] = (
    {"autocommit": True} if sys.version_info >= (3, 12) else {"factory": CommittingEach}
)


async def receive_with_autocommit(path: Path, over: str, alchemy: bool) -> None:
    """Name a key to an inbox over a connection of SQLite that commits each statement."""
    options: dict[str, Any] = {"connect_args": AUTOCOMMIT, "poolclass": NullPool}
    if over == "sqlite3":
        inbox = SyncInbox("tests", keep=WEEK)
        if alchemy:
            with create_engine(f"sqlite:///{path}", **options).begin() as begun:
                inbox.receive(begun, "k")
        else:
            with closing(sqlite3.connect(path, **AUTOCOMMIT)) as plain:
                inbox.receive(plain, "k")
    elif alchemy:
        async with create_async_engine(f"sqlite+aiosqlite:///{path}", **options).begin() as connection:
            await Inbox("tests", keep=WEEK).receive(connection, "k")
    else:
        async with aiosqlite.connect(path, **AUTOCOMMIT) as raw:
            await Inbox("tests", keep=WEEK).receive(raw, "k")


@pytest.mark.parametrize("over", ["sqlite3", "aiosqlite"])
@pytest.mark.parametrize("alchemy", [False, True], ids=["bare", "SQLAlchemy"])
async def test_so_is_one_of_sqlite_with_autocommit(tmp_path: Path, over: str, alchemy: bool) -> None:
    """Its `isolation_level` says otherwise, and only the connection's own thread may read `autocommit`."""
    path = tmp_path / "inbox.db"
    make_tables(path)
    with pytest.raises(UsageError, match="is in no transaction"):
        await receive_with_autocommit(path, over, alchemy)
    assert rows_in(path) == 0


async def test_sqlite_begins_by_the_inbox_in_its_other_modes(tmp_path: Path) -> None:
    """By default its first change begins the transaction."""
    path = tmp_path / "inbox.db"
    make_tables(path)
    modes: list[dict[str, Any]] = [{}, {"isolation_level": "IMMEDIATE"}]
    if sys.version_info >= (3, 12):
        modes.append({"autocommit": False})
    for mode in modes:
        async with aiosqlite.connect(path, **mode) as connection:
            assert (await Inbox("tests", keep=WEEK).receive(connection, "k")).first
            await connection.rollback()
        assert rows_in(path) == 0


@pytest.mark.parametrize("name", ["pymysql", "aiomysql"])
async def test_a_transaction_begun_by_hand_counts(of: Of, key: str, name: str) -> None:
    async with of(name)(autocommit=True) as party:
        await party.start()
        assert (await party.receive(party.inbox(), key)).first
        await party.rollback()
        async with party.transaction():
            assert (await party.receive(party.inbox(), key)).first


@pytest.mark.parametrize(
    ("begin", "kind"),
    [
        (Session(), "a Session"),
        (sessionmaker().begin(), "a _GeneratorContextManager"),
        (async_sessionmaker().begin(), "a _AsyncSessionContextManager"),
        (asynccontextmanager(async_sessionmaker())(), "a _AsyncGeneratorContextManager"),
        (transaction.atomic(), "an Atomic"),
        ("begin", "a str"),
    ],
)
@pytest.mark.parametrize("inbox", [Inbox, SyncInbox])
def test_a_begin_that_was_called_already_is_refused(begin: Any, kind: str, inbox: Any) -> None:
    """It is one transaction, and each call needs a new one. Said when it decorates, not at the first message."""
    message = f"^begin= must be a function that returns a new transaction, got {kind}: .* without"
    with pytest.raises(ConfigError, match=message):
        inbox("tests", keep=WEEK).once(key=lambda session, message: message, begin=begin)
    with pytest.raises(ConfigError, match=message):
        inbox("tests", keep=WEEK, begin=begin).once(key=lambda session, message: message)
    with pytest.raises(ConfigError, match=message):
        Commits(inbox("tests", keep=WEEK), begin=begin, principal=everyone)


@pytest.mark.parametrize(
    ("begin", "call"),
    [(Session.begin, r"begin\(self, nested\)"), (lambda session: session, r"<lambda>\(session\)")],
)
@pytest.mark.parametrize("inbox", [Inbox, SyncInbox])
def test_a_begin_that_needs_arguments_is_refused(begin: Any, call: str, inbox: Any) -> None:
    """Such as the method of SQLAlchemy's class, in place of a sessionmaker's: it failed at the first call."""
    with pytest.raises(ConfigError, match=f"without arguments, which {call} does not allow"):
        Commits(inbox("tests", keep=WEEK), begin=begin, principal=everyone)
    with pytest.raises(ConfigError, match="without arguments"):
        inbox("tests", keep=WEEK, begin=begin).once(key=lambda session, message: message)


def test_a_transaction_of_psycopg_with_autocommit_counts(of: Of, postgres_place: Place, key: str) -> None:
    inbox = SyncInbox("tests", keep=WEEK)
    with closing(postgres_place.observe()) as connection:
        with connection.transaction():
            assert inbox.receive(connection, key).first
        with connection.transaction():
            assert not inbox.receive(connection, key).first


def test_sqlite3_begins_with_the_insert_by_default(sqlite_place: Place, key: str) -> None:
    inbox = SyncInbox("tests", keep=WEEK)
    with closing(sqlite3.connect(sqlite_place.database.file)) as connection:
        inbox.receive(connection, key).complete(1)
        connection.rollback()
        assert inbox.receive(connection, key).first


async def test_a_pool_or_factory_is_no_transaction(
    postgres_place: Place, mariadb_place: Place, key: str
) -> None:
    urls = postgres_place.database.urls
    engine, later = create_engine(urls["psycopg"]), create_async_engine(urls["asyncpg"])
    pool = await asyncpg.create_pool(**postgres_place.database.asyncpg, min_size=0)
    other_pool = await aiomysql.create_pool(**mariadb_place.database.aiomysql, minsize=0)
    wrong = [engine, sessionmaker(engine), Session, pool, other_pool, None, "postgresql://", Inbox]
    for given in wrong:
        with pytest.raises(UsageError, match="an inbox needs"):
            await Inbox("tests", keep=WEEK).receive(given, key)
        with pytest.raises(UsageError, match="an inbox needs"):
            SyncInbox("tests", keep=WEEK).receive(given, key)
    for given in (later, async_sessionmaker(later)):
        with pytest.raises(UsageError, match="an inbox needs the caller's own transaction, got SQLAlchemy's"):
            await Inbox("tests", keep=WEEK).receive(given, key)
    await pool.close()
    other_pool.close()


async def test_sync_and_async_transactions_are_not_mixed_up(way: Opener, key: str) -> None:
    async with way() as party, party.transaction():
        if isinstance(party, SyncParty):
            other: Any = Inbox("tests", keep=WEEK)
            with pytest.raises(UsageError, match=r"is synchronous: use Inbox of fastdedup\.sync\.sql"):
                await other.receive(party.raw, key)
        else:
            other = SyncInbox("tests", keep=WEEK)
            with pytest.raises(UsageError, match=r"is async: use Inbox of fastdedup\.sql"):
                other.receive(party.raw, key)


# A session that was closed begins anew, and Django connects anew.
CLOSABLE = [name for name in WAYS if "session" not in name and "django" not in name]


@pytest.mark.parametrize("name", CLOSABLE)
async def test_a_closed_connection_is_told(party: Party, key: str) -> None:
    await party.start()
    receipt = await party.receive(party.inbox(), key)
    await party.call(party.close_raw)
    with pytest.raises(UsageError, match="is closed"):
        await party.receive(party.inbox(), key)
    with pytest.raises(UsageError, match="has ended"):
        await party.call(receipt.complete, 1)


async def test_a_connection_given_back_to_its_pool_is_closed(postgres_place: Place, key: str) -> None:
    inbox = Inbox("tests", keep=WEEK)
    async with asyncpg.create_pool(**postgres_place.database.asyncpg, min_size=0) as pool:
        async with pool.acquire() as connection, connection.transaction():
            receipt = await inbox.receive(connection, key)
        with pytest.raises(UsageError, match="is closed"):
            await inbox.receive(connection, key)
        with pytest.raises(UsageError, match="has ended"):
            await receipt.complete(1)


READ_ONLY = {
    "postgresql": "SET TRANSACTION READ ONLY",
    "mysql": "START TRANSACTION READ ONLY",
    "sqlite": "PRAGMA query_only = ON",
}


async def test_a_read_only_transaction_is_told(way: Opener, key: str) -> None:
    async with way() as party:
        await party.start()
        await party.sql(READ_ONLY[party.place.kind])
        error = (
            RetryTransaction if party.place.kind == "postgresql" else UsageError
        )  # PostgreSQL has one code
        with pytest.raises(error, match="may only read"):
            await party.receive(party.inbox(), key)
        await party.rollback()


@pytest.mark.parametrize("name", ["asyncpg", "psycopg"])
async def test_a_connection_to_a_replica_is_told(party: Party, key: str) -> None:
    """A replica of PostgreSQL refuses writes as a session does that may only read."""
    async with party.transaction():
        await party.sql("SET default_transaction_read_only = on")
    for attempt in (
        party.receive(party.inbox(), key),
        party.receive(party.inbox(), key, busy="skip"),
        party.call(party.inbox().receive_many, party.raw, [key, f"{key} other"]),
    ):
        await party.start()
        with pytest.raises(RetryTransaction, match="give it a connection to the primary"):
            await attempt
        await party.rollback()


async def test_a_replica_of_mariadb_is_told(mariadb_place: Place, of: Of, key: str) -> None:
    mariadb_place.as_admin("SET GLOBAL read_only = ON")
    try:
        async with of("aiomysql")() as party:
            await party.start()
            with pytest.raises(RetryTransaction, match="give it a connection to the primary"):
                await party.receive(party.inbox(), key)
            await party.rollback()
    finally:
        mariadb_place.as_admin("SET GLOBAL read_only = OFF")


@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if way.kind == "postgresql"])
async def test_a_failed_transaction_is_told(party: Party, key: str) -> None:
    await party.start()
    receipt = await party.receive(party.inbox(), key)
    with suppress(Exception):
        await party.sql("SELECT 1 / 0")
    for attempt in (
        party.receive(party.inbox(), key),
        party.call(receipt.complete, 1),
    ):
        with pytest.raises(UsageError, match="can only be rolled back"):
            await attempt
    await party.rollback()


class Base(DeclarativeBase):
    pass


class Work(Base):
    __tablename__ = "work_by_number"
    number: Mapped[int] = mapped_column(primary_key=True)


def test_a_session_whose_flush_failed_is_told(postgres_place: Place, key: str) -> None:
    engine = create_engine(postgres_place.database.urls["psycopg"])
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([Work(number=1)])
        session.flush()
        session.execute(text("SAVEPOINT here"))
        session.expunge_all()
        session.add(Work(number=1))
        with pytest.raises(IntegrityError):
            session.flush()
        with pytest.raises(UsageError, match="can only be rolled back"):
            SyncInbox("tests", keep=WEEK).receive(session, key)
    engine.dispose()


def test_a_transaction_ended_within_its_block_is_told(sqlite_place: Place, key: str) -> None:
    inbox = SyncInbox("tests", keep=WEEK)
    with Session(engine_of(sqlite_place.database.urls["pysqlite"])) as session, session.begin():
        receipt = inbox.receive(session, key)
        session.rollback()
        with pytest.raises(UsageError, match="has ended"):
            receipt.complete(1)
        with pytest.raises(UsageError, match="takes no statement in this transaction"):
            inbox.receive(session, key)


async def test_a_receipt_that_was_rolled_back_completes_no_later_one(database: Opener, key: str) -> None:
    async with database() as party, party.transaction():
        await party.sql("SAVEPOINT here")
        former = await party.receive(party.inbox(), key)
        await party.sql("ROLLBACK TO SAVEPOINT here")
        with pytest.raises(UsageError, match="was rolled back"):
            await party.call(former.complete, 1)
        latter = await party.receive(party.inbox(), key)
        assert latter.first
        await party.call(latter.complete, "paid 7")
        with pytest.raises(UsageError, match="has ended"):
            await party.call(former.complete, "paid 9")


@pytest.mark.parametrize("name", ["psycopg", "pymysql"])
async def test_a_receipt_that_was_rolled_back_completes_no_twin(of: Of, name: str, key: str) -> None:
    async with of(name)() as party, of(name)() as twin:
        async with party.transaction():
            await party.sql("SAVEPOINT here")
            receipt = await party.receive(party.inbox(), key)
            await party.sql("ROLLBACK TO SAVEPOINT here")
            async with twin.transaction():
                await twin.call((await twin.receive(twin.inbox(), key)).complete, "paid 7")
            with pytest.raises(UsageError, match="has ended"):
                await party.call(receipt.complete, "paid 9")
        async with twin.transaction():
            assert (await twin.receive(twin.inbox(), key)).result == "paid 7"


def test_a_session_of_several_engines_is_told(sqlite_place: Place, key: str) -> None:
    engine = engine_of(sqlite_place.database.urls["pysqlite"])
    inbox = SyncInbox("tests", keep=WEEK)
    with Session(binds={Work: engine}) as session, session.begin():
        with pytest.raises(UsageError, match="give the inbox a connection"):
            inbox.receive(session, key)
        assert inbox.receive(session.connection(bind_arguments={"mapper": Work}), key).first


def test_a_database_that_no_inbox_serves_is_told() -> None:
    with pytest.raises(ConfigError, match="needs PostgreSQL, MySQL, MariaDB or SQLite, got 'oracle'"):
        dialect_of("oracle", TableName("inbox"))


async def test_what_a_driver_has_besides_connections_is_told(of: Of, key: str) -> None:
    for name in ("sqlite3", "aiosqlite", "psycopg", "pymysql"):
        async with of(name)() as party:
            cursor = await party.call(party.raw.cursor) if name != "pymysql" else party.raw.cursor()
            with pytest.raises(UsageError, match="needs a connection in a transaction, got"):
                await party.call(party.inbox().receive, cursor, key)
    with pytest.raises(UsageError, match=r"from django\.db import connection"):
        SyncInbox("tests", keep=WEEK).receive(transaction.Atomic(None, True, False), key)


def test_a_block_of_django_that_must_roll_back_is_told(sqlite_place: Place, key: str) -> None:
    alias = alias_of(sqlite_place)
    connection = connections[alias]
    with transaction.atomic(using=alias):
        with suppress(DatabaseError), transaction.atomic(using=alias, savepoint=False):
            raise DatabaseError
        with pytest.raises(UsageError, match="can only be rolled back"):
            SyncInbox("tests", keep=WEEK).receive(connection, key)
    connection.close()


def test_a_transaction_of_django_without_autocommit_counts(sqlite_place: Place, key: str) -> None:
    connection = connections[alias_of(sqlite_place)]
    inbox = SyncInbox("tests", keep=WEEK)
    connection.set_autocommit(False)
    inbox.receive(connection, key).complete(1)
    connection.rollback()
    assert inbox.receive(connection, key).first
    connection.rollback()
    connection.close()


def test_another_block_of_django_completes_no_receipt(sqlite_place: Place, key: str) -> None:
    alias = alias_of(sqlite_place)
    with transaction.atomic(using=alias):
        receipt = SyncInbox("tests", keep=WEEK).receive(connections[alias], key)
    with transaction.atomic(using=alias), pytest.raises(UsageError, match="has ended"):
        receipt.complete(1)
    connections[alias].close()


async def test_an_async_view_of_django_receives(sqlite_place: Place, key: str) -> None:
    alias = alias_of(sqlite_place)
    inbox = SyncInbox("tests", keep=WEEK)

    def handle() -> Any:
        with transaction.atomic(using=alias):
            receipt = inbox.receive(connections[alias], key)
            if receipt.first:
                receipt.complete("done")
            return receipt.first, receipt.result

    assert await sync_to_async(handle)() == (True, "done")
    assert await sync_to_async(handle)() == (False, "done")
    await sync_to_async(lambda: connections[alias].close())()


# A `begin` within another transaction, behind a gate


def test_a_block_of_django_within_another_one_is_no_begin_of_a_gate(sqlite_place: Place, key: str) -> None:
    """The outer one's rollback (ATOMIC_REQUESTS) undid the work, and the gate answered: done."""
    alias = alias_of(sqlite_place)

    @contextmanager
    def begin() -> Iterator[Any]:
        with transaction.atomic(using=alias):
            yield connections[alias]

    with SyncDedup("memory://", namespace="shop") as gate:
        inbox = SyncInbox("tests", keep=WEEK, begin=begin)
        work = inbox.once(key=lambda transaction, key: key, gate=gate)(lambda transaction, key: key)
        alone = inbox.once(key=lambda transaction, key: f"alone {key}")(lambda transaction, key: key)
        with transaction.atomic(using=alias):
            with pytest.raises(UsageError, match="within another transaction"):
                work(key)
            assert alone(key) == key  # row and work end with the outer one
        assert work(key) == key
    connections[alias].close()


def test_a_test_case_of_django_is_no_outer_transaction(sqlite_place: Place, key: str) -> None:
    alias = alias_of(sqlite_place)

    @contextmanager
    def begin() -> Iterator[Any]:
        with transaction.atomic(using=alias, durable=True):
            yield connections[alias]

    around = transaction.atomic(using=alias)
    around._from_testcase = True  # as django.test.TestCase marks it
    with SyncDedup("memory://", namespace="shop") as gate, around:
        once = SyncInbox("tests", keep=WEEK, begin=begin).once(key=lambda transaction, key: key, gate=gate)
        assert once(lambda transaction, key: key)(key) == key
    connections[alias].close()


@pytest.mark.parametrize("name", ["session pymysql", "async session aiomysql", "async session aiosqlite"])
async def test_work_that_leaves_a_nested_transaction_open_is_told(of: Of, key: str, name: str) -> None:
    """PostgreSQL goes on from there. The others were told that the transaction had ended, or the row was deleted."""
    async with of(name)() as party:
        raw = party.raw

        @asynccontextmanager
        async def begin() -> AsyncIterator[Any]:
            async with raw.begin():
                yield raw

        @contextmanager
        def sync_begin() -> Iterator[Any]:
            with raw.begin():
                yield raw

        async def work(transaction: Any, key: str) -> None:
            await transaction.begin_nested()

        def sync_work(transaction: Any, key: str) -> None:
            transaction.begin_nested()

        is_async = name.startswith("async")
        once = party.inbox(begin=begin if is_async else sync_begin).once(key=lambda transaction, key: key)
        with pytest.raises(UsageError, match="has left a nested transaction open"):
            await party.call(once(work if is_async else sync_work), key)
        async with party.transaction():
            assert (await party.receive(party.inbox(), key)).first


async def test_a_nested_transaction_of_sqlalchemy_is_no_begin_of_a_gate(of: Of, key: str) -> None:
    async with of("async session asyncpg")() as party, Dedup("memory://", namespace="shop") as gate:

        @asynccontextmanager
        async def begin() -> AsyncIterator[Any]:
            async with party.raw.begin_nested():
                yield party.raw

        async def work(transaction: Any, key: str) -> str:
            return key

        once = party.inbox(begin=begin).once(key=lambda transaction, key: key, gate=gate)(work)
        async with party.raw.begin():
            with pytest.raises(UsageError, match="within another transaction"):
                await once(key)
        assert (await gate.get(party.inbox().gate_key(key))).state == "released"  # type: ignore[union-attr]


KILL = {
    "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({})"),
    "mysql": ("SELECT CONNECTION_ID()", "KILL {}"),
}


@pytest.mark.parametrize(
    "name", ["asyncpg", "psycopg", "psycopg async", "pymysql", "aiomysql", "django postgresql"]
)
async def test_a_lost_connection_is_no_transaction_that_the_work_has_ended(party: Party, key: str) -> None:
    """Also if the work ignores the error: else a consumer lays its message down, after a restart of the database."""
    who, kill = KILL[party.place.kind]
    lost: list[bool] = []

    async def work(transaction: Any, key: str) -> None:
        driver = driver_of(transaction)
        party.place.as_admin(kill.format((await party.sql(who))[0][0]))
        for _ in range(2):
            with suppress(Exception):
                await party.sql("SELECT 1")
        lost.append(driver.is_lost())

    decorate = party.inbox(begin=party.beginning).once(lambda transaction, key: key)
    with pytest.raises(Exception, match=r"(?i)lost|closed|connected|^\(0, ''\)") as caught:
        await party.call(decorate(party.own(work)), key)
    assert not isinstance(caught.value, UsageError)
    assert lost == [True]
