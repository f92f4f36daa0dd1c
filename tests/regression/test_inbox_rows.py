"""An inbox on a database that drops rows, gives way, or has other tables."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import aiomysql
import aiosqlite
import asyncpg
import pytest

from fastdedup import ConfigError
from fastdedup.messages import MessageRules
from fastdedup.messages.decisions import Action, Decision
from fastdedup.messages.deliveries import Deliveries
from fastdedup.sql import Inbox, RetryTransaction
from fastdedup.sql.dialects import Dialect, TableName, dialect_of
from fastdedup.sql.dialects.base import Flow
from fastdedup.sync.sql import Inbox as SyncInbox

from ..sql import conftest as sql
from ..sql.conftest import Opener
from ..sql.fresh import create_by_ddl, engine_at
from ..sql.ways import WEEK
from ..waiting import wait_until

# A database that drops the inbox's insert was told to be a purge, and the transaction to be run again, for
# ever. Neither a unique id nor an error: `INSERT IGNORE` ignores a missing partition and a foreign key, and
# a trigger may return NULL. A row that a purge has deleted in between is inserted again, in the same
# transaction.


key, database = sql.key, sql.database
postgres_place, mariadb_place, sqlite_place = sql.postgres_place, sql.mariadb_place, sql.sqlite_place

DROPS: dict[str, list[tuple[str, ...]]] = {
    "postgresql": [
        (
            "CREATE OR REPLACE FUNCTION drops() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
            "CREATE TRIGGER drops BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION drops()",
        )
    ],
    "mysql": [
        ("ALTER TABLE {table} PARTITION BY RANGE COLUMNS(id) (PARTITION p VALUES LESS THAN (X'00000001'))",),
        (
            "CREATE TABLE {table}_of (id BINARY(16) PRIMARY KEY) ENGINE=InnoDB",
            "ALTER TABLE {table} ADD FOREIGN KEY (id) REFERENCES {table}_of (id)",
        ),
    ],
    "sqlite": [("CREATE TRIGGER {table}_drops BEFORE INSERT ON {table} BEGIN SELECT RAISE(IGNORE); END",)],
}


async def test_a_dropped_insert_is_told(database: Opener, key: str) -> None:
    async with database() as party:
        for statements in DROPS[party.place.kind]:
            table = party.place.fresh_table()
            party.place.create(table)
            party.place.sql(*(statement.format(table=table) for statement in statements))
            inbox = party.inbox(table=table)
            for options in ({}, {"busy": "skip"}, {"fingerprint": 5}):
                async with party.transaction():
                    with pytest.raises(ConfigError, match=f"drops what the inbox inserts into {table}"):
                        await party.receive(inbox, key, **options)
            async with party.transaction():
                with pytest.raises(ConfigError, match="drops what the inbox inserts"):
                    await party.call(inbox.receive_many, party.raw, [key, f"{key} too"])


@pytest.mark.parametrize("many", [False, True])
async def test_a_row_deleted_in_between_is_first_again(
    database: Opener, key: str, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a purge, between the insert that met the row and the read of it."""
    async with database() as party:
        inbox = party.inbox()
        async with party.transaction():
            await party.receive(inbox, key)
        dialect: type[Dialect] = type(inbox.rules.dialect((party.place.kind,)))
        kept = dialect.kept

        def purged(self: Any, ids: Any, *, marked: bool) -> Flow[Any]:
            """Delete the rows by the transaction itself, as SQLite has no other writer."""
            monkeypatch.setattr(dialect, "kept", kept)
            yield from self.purge(-WEEK, 1000)
            return (yield from kept(self, ids, marked=marked))

        monkeypatch.setattr(dialect, "kept", purged)
        async with party.transaction():
            if many:
                found = await party.call(inbox.receive_many, party.raw, [key, f"{key} new", key])
                assert [each.first for each in found] == [True, True, False]
            else:
                assert (await party.receive(inbox, key)).first
        async with party.transaction():
            assert not (await party.receive(inbox, key)).first


# A purge of a table that is no inbox deleted its old rows, where the table had a column `at`.


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A database with a row of somebody else's, from 1970."""
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE audit (id BLOB PRIMARY KEY, at INTEGER)")
        connection.execute("INSERT INTO audit VALUES (x'01', 1)")
    return file


def rows(file: Path) -> Any:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute("SELECT count(*) FROM audit").fetchone()[0]


Purge = Callable[..., Awaitable[int]]


@pytest.fixture(params=["synchronous", "asyncio"])
def purge(request: pytest.FixtureRequest) -> Purge:
    """Purges an inbox in a file, in either kind of code; `meets` is called when a transaction begins."""

    async def purged(
        file: Path, meets: Callable[[], object] = lambda: None, on_batch: Any = None, **options: Any
    ) -> int:
        @contextmanager
        def begin() -> Iterator[sqlite3.Connection]:
            meets()
            with closing(sqlite3.connect(file, timeout=0.0)) as connection, connection:
                yield connection

        @asynccontextmanager
        async def abegin() -> AsyncIterator[aiosqlite.Connection]:
            meets()
            async with aiosqlite.connect(file, timeout=0.0) as connection:
                yield connection
                await connection.commit()

        if request.param == "synchronous":
            return SyncInbox("shop", keep=60.0, begin=begin, **options).purge(on_batch=on_batch)
        return await Inbox("shop", keep=60.0, begin=abegin, **options).purge(on_batch=on_batch)

    return purged


async def test_a_purge_refuses_another_table(file: Path, purge: Purge) -> None:
    with pytest.raises(ConfigError, match="the table audit is no inbox: it has no column result"):
        await purge(file, table="audit")
    assert rows(file) == 1


# A purge ended with the first batch that the database ended, and had counted that batch's rows as deleted.


@pytest.fixture
def inbox_file(tmp_path: Path) -> Path:
    """An inbox with three rows from 1970."""
    inbox_file = tmp_path / "shop.db"
    with closing(sqlite3.connect(inbox_file)) as connection, connection:
        connection.executescript(dialect_of("sqlite", TableName("fastdedup_inbox")).ddl())
        rows = "VALUES (x'01', 1), (x'02', 2), (x'03', 3)"
        connection.execute(f"INSERT INTO fastdedup_inbox (id, at) {rows}")
    return inbox_file


class Obstacle:
    """Another connection: `BEGIN IMMEDIATE` stops each statement of the purge, an open SELECT stops its COMMIT."""

    def __init__(self, inbox_file: Path, statement: str, times: int) -> None:
        self._connection = sqlite3.connect(inbox_file, isolation_level=None)
        self._cursor = self._connection.execute(statement)
        self._times = times

    def meet(self) -> None:
        """Be there for the first `times` transactions."""
        if not self._times:
            self._cursor.close()
            self._connection.close()
        self._times -= 1


@pytest.mark.parametrize("statement", ["BEGIN IMMEDIATE", "SELECT * FROM fastdedup_inbox"])
async def test_a_purge_runs_an_ended_batch_again(inbox_file: Path, purge: Purge, statement: str) -> None:
    counts: list[int] = []
    obstacle = Obstacle(inbox_file, statement, times=2)
    assert await purge(inbox_file, obstacle.meet, counts.append) == 3
    assert counts == [3]


async def test_a_purge_does_not_try_for_ever(inbox_file: Path, purge: Purge) -> None:
    obstacle = Obstacle(inbox_file, "BEGIN IMMEDIATE", times=5)
    with pytest.raises(RetryTransaction, match="database is locked"):
        await purge(inbox_file, obstacle.meet)
    obstacle.meet()


# A database that took no writes for a moment, as in a planned failover, ended all its consumers for good.


class Standby:
    """A database of which a test says when it takes writes; `begin` connects to it for each transaction."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.database = server.fresh()

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        raise NotImplementedError
        yield

    def takes_writes(self, does: bool) -> None:
        """Let it take writes, or none."""
        raise NotImplementedError


class Postgres(Standby):
    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(**self.database.asyncpg)
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()

    def takes_writes(self, does: bool) -> None:
        with self.server.admin() as connection:
            connection.execute(
                f"ALTER DATABASE {self.database.name} SET default_transaction_read_only = {'off' if does else 'on'}"
            )


class MariaDB(Standby):
    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        connection = await aiomysql.connect(**self.database.aiomysql)
        try:
            yield connection
            await connection.commit()
        finally:
            connection.close()

    def takes_writes(self, does: bool) -> None:
        with self.server.admin() as connection, connection.cursor() as cursor:
            cursor.execute(f"SET GLOBAL read_only = {'OFF' if does else 'ON'}")


@pytest.fixture(params=["postgres", "mariadb"])
def standby(request: pytest.FixtureRequest) -> Standby:
    kind = Postgres if request.param == "postgres" else MariaDB
    return kind(request.getfixturevalue(request.param))


async def test_messages_are_held_until_it_takes_writes_again(standby: Any) -> None:
    runs = []

    async def work(connection: Any, message: str) -> None:
        runs.append(message)

    async def lay(decision: Decision) -> None:
        raise AssertionError(decision)

    engine = engine_at(dict(sorted(standby.database.urls.items())))
    create_by_ddl(engine)
    inbox = Inbox("orders", keep=3_600.0, begin=standby.begin)
    deliveries = Deliveries(MessageRules("orders", str), None, inbox)
    standby.takes_writes(False)
    try:
        delivery = asyncio.create_task(deliveries.handle("m-1", work, lay))
        await wait_until(lambda: deliveries.counts.held, description="the message is held")
    finally:
        standby.takes_writes(True)
    assert (await delivery).action is Action.ACK
    assert runs == ["m-1"]
