"""docs/inbox.md: its Python and SQL run, on real servers and real drivers."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import asyncpg
import psycopg
import pymysql
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from fastdedup.sql import Inbox
from fastdedup.sql.dialects import TableName, dialect_of
from fastdedup.sync.sql import Inbox as SyncInbox

from ..databases import MariaDatabase, MariaServer, PostgresDatabase, PostgresServer
from .pages import Page

PAGE = Page("inbox.md")
(RECEIVE,) = PAGE.blocks("Receive", "python")
GATE, BEGIN = PAGE.blocks("Once, with a gate in front", "python")
(MANY,) = PAGE.blocks("Many messages in one transaction", "python")
(ENGINES,) = PAGE.blocks("SQLite", "python")
FOLDED = """
WITH inbox AS (
    INSERT INTO fastdedup_inbox (id) VALUES ($1) ON CONFLICT (id) DO NOTHING RETURNING id
), paid AS (
    UPDATE account SET balance = balance - $2 FROM inbox WHERE account.id = $3 RETURNING balance
)
SELECT EXISTS (SELECT FROM inbox) AS first, (SELECT balance FROM paid) AS balance
"""
"""The insert and the first change of a handler's own, in one statement."""

ACCOUNT = "CREATE TABLE account (id integer PRIMARY KEY, balance integer NOT NULL CHECK (balance >= 0))"


def message(name: str = "m-1", amount: int = 500) -> Any:
    return SimpleNamespace(id=name, account=7, amount=amount)


def schema(dialect: str) -> list[str]:
    """The statements that make the inbox, and an account with 1,000."""
    inbox = dialect_of(dialect, TableName("fastdedup_inbox")).ddl().split(";")
    return [*filter(str.strip, inbox), ACCOUNT, "INSERT INTO account VALUES (7, 1000)"]


RESET = (
    "DELETE FROM fastdedup_inbox",
    "UPDATE account SET balance = 1000",
)


@pytest.fixture(scope="module")
def shop_in_postgres(postgres: PostgresServer) -> Iterator[PostgresDatabase]:
    database = postgres.fresh()
    run_in_postgres(database, *schema("postgresql"))
    yield database
    postgres.drop(database)


@pytest.fixture(scope="module")
def shop_in_mariadb(mariadb: MariaServer) -> Iterator[MariaDatabase]:
    database = mariadb.fresh()
    run_in_mariadb(database, *schema("mysql"))
    yield database
    mariadb.drop(database)


@pytest.fixture
def postgresql(shop_in_postgres: PostgresDatabase) -> PostgresDatabase:
    run_in_postgres(shop_in_postgres, *RESET)
    return shop_in_postgres


@pytest.fixture
def maria(shop_in_mariadb: MariaDatabase) -> MariaDatabase:
    run_in_mariadb(shop_in_mariadb, *RESET)
    return shop_in_mariadb


def run_in_postgres(database: PostgresDatabase, *statements: str) -> None:
    with psycopg.connect(**database.psycopg) as connection:
        for statement in statements:
            connection.execute(statement)


def run_in_mariadb(database: MariaDatabase, *statements: str) -> None:
    with closing(pymysql.connect(**database.pymysql)) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        connection.commit()


@pytest.fixture
def sqlite(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(";".join(schema("sqlite")))
    return path


@asynccontextmanager
async def sessions(url: str, **options: Any) -> AsyncIterator[Any]:
    """`Session` of the page, for a database."""
    engine = create_async_engine(url, **options)
    yield async_sessionmaker(engine)
    await engine.dispose()


async def check(handle: Any, balance: Any) -> None:
    """A message acts once, its duplicate gets its result; work that fails takes the row away with it."""
    assert [await handle(message()) for _ in range(2)] == [{"paid": 500}] * 2
    assert await balance() == 500
    with pytest.raises(Exception, match=r"(?i)check|constraint"):
        await handle(message("m-2", 501))
    assert await handle(message("m-2", 500)) == {"paid": 500}
    assert await balance() == 0


BALANCE = "SELECT balance FROM account WHERE id = 7"


def balance_of(database: Any) -> Any:
    async def balance() -> int:
        connect: Any = {
            PostgresDatabase: lambda: psycopg.connect(**database.psycopg),
            MariaDatabase: lambda: pymysql.connect(**database.pymysql),
        }.get(type(database), lambda: sqlite3.connect(database))
        with closing(connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(BALANCE)
            return int(cursor.fetchone()[0])

    return balance


def in_thread(function: Any, *first: Any) -> Any:
    """Call a synchronous handler as the asynchronous ones are called."""

    async def call(each: Any) -> Any:
        return function(*first, each)

    return call


def inbox_of(inbox: type[Any]) -> Any:
    """The page's inbox, of asyncio or not."""
    return inbox("billing", keep=timedelta(days=7))


async def test_sqlalchemy_async(postgresql: PostgresDatabase) -> None:
    async with sessions(postgresql.urls["asyncpg"]) as session:
        await check(PAGE.run(RECEIVE, Session=session)["handle"], balance_of(postgresql))


async def test_sqlalchemy_sync(maria: MariaDatabase) -> None:
    engine = create_engine(maria.urls["pymysql"])
    block = RECEIVE.replace("async ", "").replace("await ", "").replace("fastdedup.sql", "fastdedup.sync.sql")
    await check(in_thread(PAGE.run(block, Session=sessionmaker(engine))["handle"]), balance_of(maria))
    engine.dispose()


PROJECT = """
import asyncio, sys
from types import SimpleNamespace
import django
from django.conf import settings

settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1]}})
django.setup()
from django.db import models

class Account(models.Model):
    balance = models.IntegerField()
    class Meta:
        app_label, db_table = "billing", "account"

from datetime import timedelta
from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.http import JsonResponse
from fastdedup.sync.sql import Inbox

inbox = Inbox("billing", keep=timedelta(days=7))

def handle(message):
    with transaction.atomic():
        receipt = inbox.receive(connection, message.id)
        if not receipt.first:
            return receipt.replay()
        Account.objects.filter(id=message.account).update(balance=models.F("balance") - message.amount)
        receipt.complete({"paid": message.amount})
        return receipt.result

async def hook(request, message):
    return JsonResponse(await sync_to_async(handle)(message))

message = SimpleNamespace(id="m-1", account=7, amount=500)
assert handle(message) == handle(message) == {"paid": 500}
too_much = SimpleNamespace(id="m-2", account=7, amount=501)
try:
    handle(too_much)
except django.db.IntegrityError:
    too_much.amount = 500
assert asyncio.run(hook(None, too_much)).content == b'{"paid": 500}'
assert asyncio.run(hook(None, too_much)).content == b'{"paid": 500}'
"""


def test_django(sqlite: Path) -> None:
    """In a process of its own, because a process has one set of Django's settings."""
    program = PROJECT
    command = [sys.executable, "-W", "error", "-c", program, str(sqlite)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    assert asyncio.run(balance_of(sqlite)()) == 0


async def test_once_with_a_gate_in_front(postgresql: PostgresDatabase, redis_url: str) -> None:
    block = f"{RECEIVE}\n{GATE}".replace("redis://localhost:6379/0", redis_url)
    async with sessions(postgresql.urls["asyncpg"]) as session:
        names = PAGE.run(block, Session=session)
        answers: list[Any] = []
        acked: list[bool] = []

        async def ack() -> None:
            acked.append(True)

        async def deliveries() -> AsyncIterator[Any]:
            answers.extend(await asyncio.gather(*(names["on_payment"](message()) for _ in range(5))))
            once = message()
            once.ack = ack
            yield once

        await names["consume"](deliveries())
    assert (answers, acked) == ([{"paid": 500}] * 5, [True])
    assert await balance_of(postgresql)() == 500


async def test_a_beginning_of_ones_own_yields_the_transaction(postgresql: PostgresDatabase) -> None:
    inbox = inbox_of(Inbox)
    async with asyncpg.create_pool(**postgresql.asyncpg, min_size=1) as pool:
        names = PAGE.run(BEGIN, pool=pool)

        @inbox.once(key=lambda connection, name: name, begin=names["begin_asyncpg"])
        async def work(connection: Any, name: str) -> Any:
            return await connection.fetchval(BALANCE)

        assert [await work("m-1"), await work("m-1")] == [1000, 1000]


LOSING = """
import json, sys
import pymysql
pymysql.version_info = (2, 2, 1, "final", 0)             # as of the mysqlclient that Django asks for
pymysql.install_as_MySQLdb()
import django
from django.conf import settings
settings.configure(DATABASES={"default": {**json.loads(sys.argv[1]), "CONN_MAX_AGE": None}})
django.setup()
BEGIN
for _ in range(2):                                       # no request ends in between
    with begin_django() as inside, inside.cursor() as cursor:
        cursor.execute("SELECT CONNECTION_ID()")
        number = cursor.fetchone()[0]
    with pymysql.connect(**json.loads(sys.argv[2])) as other, other.cursor() as cursor:
        cursor.execute(f"KILL {number}")
    try:
        with begin_django() as inside, inside.cursor() as cursor:
            cursor.execute("SELECT 1")
    except django.db.OperationalError:
        pass                                             # noticed
"""


def test_django_outlives_a_lost_connection_without_requests(maria: MariaDatabase) -> None:
    program = LOSING.replace("BEGIN\n", BEGIN)
    arguments = json.dumps(maria.django), json.dumps(maria.pymysql)
    command = [sys.executable, "-c", program, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr


async def test_many_messages_in_one_transaction(maria: MariaDatabase) -> None:
    async with sessions(maria.urls["aiomysql"]) as session:
        handle = PAGE.run(f"{RECEIVE}\n{MANY}", Session=session)["handle_batch"]
        batch = [message("b", 100), message("a", 100), message("b", 100)]
        assert (await handle(batch), await handle([*batch, message("c", 100)])) == (2, 1)
    assert await balance_of(maria)() == 700


async def test_sqlites_engines_take_the_write_lock_first(
    sqlite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sqlite.parent)
    names = PAGE.run(ENGINES.replace('"timeout": 5.0', '"timeout": 0.0'))
    inbox = inbox_of(SyncInbox)
    with names["engine"].begin() as connection:
        assert inbox.receive(connection, "m-1").first
        with closing(sqlite3.connect(sqlite, timeout=0.0)) as other:
            assert other.execute(BALANCE).fetchone() == (1000,)
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")
    async with names["engine_async"].begin() as connection:
        assert not (await inbox_of(Inbox).receive(connection, "m-1")).first
    names["engine"].dispose()
    await names["engine_async"].dispose()


async def test_folded_into_one_statement(postgresql: PostgresDatabase) -> None:
    inbox = inbox_of(Inbox)

    async def handle(pool: Any, each: Any) -> bool:
        async with pool.acquire() as connection, connection.transaction():
            row_id = UUID(bytes=inbox.id_of(each.id))
            row = await connection.fetchrow(FOLDED, row_id, each.amount, each.account)
            if row["first"] and row["balance"] is None:
                raise LookupError(each.account)
            return bool(row["first"])

    async with asyncpg.create_pool(**postgresql.asyncpg, min_size=2) as pool:
        assert sorted(await asyncio.gather(*(handle(pool, message()) for _ in range(5)))) == [False] * 4 + [
            True
        ]
        assert await balance_of(postgresql)() == 500
        nobody = SimpleNamespace(id="m-2", account=8, amount=1)
        for _ in range(2):
            with pytest.raises(LookupError):
                await handle(pool, nobody)


def test_both_inboxes_give_a_key_the_same_id() -> None:
    found = {inbox_of(each).id_of("m-1") for each in (Inbox, SyncInbox)}
    assert [len(each) for each in found] == [16]


def test_each_block_of_the_page_has_a_test() -> None:
    assert sorted([RECEIVE, GATE, BEGIN, MANY, ENGINES]) == sorted(PAGE.all_blocks("python"))
    assert PAGE.all_blocks("sql") == []
