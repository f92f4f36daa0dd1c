"""The database servers of the tests: they answer to every driver and keep what was committed.

That they end with the tests is in test_brokers.py.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any

import aiomysql
import asyncpg
import psutil
import psycopg
import pymysql
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from .database_server import DatabaseServer
from .databases import MariaServer, PostgresServer

SERVERS = ("postgres", "mariadb")


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> DatabaseServer:
    """This worker's server of either kind."""
    running: DatabaseServer = request.getfixturevalue(request.param)
    return running


async def test_postgres_answers_to_every_driver(postgres: PostgresServer) -> None:
    database = postgres.fresh()
    connection = await asyncpg.connect(**database.asyncpg)
    assert await connection.fetchval("SELECT current_database()") == database.name
    await connection.close()
    with psycopg.connect(**database.psycopg) as plain:
        assert plain.execute("SELECT current_user").fetchone() == ("fastdedup",)
    async with await psycopg.AsyncConnection.connect(**database.psycopg) as later:
        assert await (await later.execute("SELECT 1")).fetchone() == (1,)
    assert await answers_of_sqlalchemy(database.urls, {"asyncpg", "psycopg"}) == [1, 1, 1]


async def test_mariadb_answers_to_every_driver(mariadb: MariaServer) -> None:
    database = mariadb.fresh()
    with closing(pymysql.connect(**database.pymysql)) as plain, plain.cursor() as cursor:
        cursor.execute("SELECT DATABASE(), CURRENT_USER()")
        assert cursor.fetchone() == (database.name, "fastdedup@localhost")
    async with aiomysql.connect(**database.aiomysql) as later, later.cursor() as answers:
        await answers.execute("SELECT 1")
        assert await answers.fetchone() == (1,)
    assert await answers_of_sqlalchemy(database.urls, {"aiomysql"}) == [1, 1]


async def answers_of_sqlalchemy(urls: dict[str, str], asynchronous: set[str]) -> list[Any]:
    """What `SELECT 1` gives by each engine that the drivers allow, sync and async."""
    answers = []
    for driver, url in urls.items():
        if driver in asynchronous:
            engine = create_async_engine(url)
            async with engine.begin() as connection:
                answers.append(await connection.scalar(sqlalchemy.text("SELECT 1")))
            await engine.dispose()
        if driver in {"psycopg", "pymysql"}:
            plain = sqlalchemy.create_engine(url)
            with plain.begin() as transaction:
                answers.append(transaction.scalar(sqlalchemy.text("SELECT 1")))
            plain.dispose()
    return answers


def test_no_database_server_runs_as_root(server: DatabaseServer) -> None:
    assert psutil.Process(server.pid).uids().effective != 0


def test_a_database_server_listens_on_no_port(server: DatabaseServer) -> None:
    assert psutil.Process(server.pid).net_connections("inet") == []


def test_a_fresh_database_is_empty_and_can_be_dropped(server: DatabaseServer) -> None:
    first, second = server.fresh(), server.fresh()
    for database in (first, second):
        with closing(connect(database)) as connection:
            run(connection, "CREATE TABLE same (id int)")
            connection.commit()
    server.drop(second)
    with pytest.raises((psycopg.OperationalError, pymysql.OperationalError)):
        connect(second)


@pytest.mark.parametrize("kind", [PostgresServer, MariaServer])
def test_committed_rows_outlive_a_killed_server(kind: type[DatabaseServer]) -> None:
    with kind() as server:
        database = server.fresh()
        with closing(connect(database)) as ours, closing(connect(database)) as other:
            run(ours, "CREATE TABLE kept (id int)", "INSERT INTO kept VALUES (1)")
            ours.commit()
            run(other, "INSERT INTO kept VALUES (2)")
            server.kill()
            with pytest.raises((psycopg.OperationalError, pymysql.OperationalError)):
                run(ours, "SELECT 1")
        server.start()
        with closing(connect(database)) as ours:
            assert run(ours, "SELECT id FROM kept") == [(1,)]


@pytest.mark.parametrize("kind", [PostgresServer, MariaServer])
def test_a_server_that_does_not_start_leaves_nothing(kind: type[DatabaseServer]) -> None:
    server = kind("--no-such-option=1")
    with pytest.raises(AssertionError, match=r"no.such.option"):
        server.start()
    assert not psutil.pid_exists(server.pid)
    assert not server.folder.exists()


async def test_a_frozen_server_answers_once_thawed(server: DatabaseServer) -> None:
    with closing(connect(server.fresh())) as connection:
        with server.frozen():
            asked = asyncio.get_running_loop().run_in_executor(None, run, connection, "SELECT 1")
            done, _ = await asyncio.wait([asked], timeout=0.1)
            assert not done
        assert await asked == [(1,)]


def connect(database: Any) -> Any:
    if hasattr(database, "psycopg"):
        return psycopg.connect(**database.psycopg)
    return pymysql.connect(**database.pymysql)


def run(connection: Any, *statements: str) -> list[Any]:
    """Run statements in the connection's transaction; give the rows of the last one."""
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []
