"""What a database ends for another transaction's sake is one error, `RetryTransaction`."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import pymysql
import pytest
from django.db import utils
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from fastdedup import Outcome
from fastdedup.sql import RetryTransaction
from fastdedup.sql.dialects import fault_of
from fastdedup.sql.dialects.base import Rows, TableName
from fastdedup.sql.dialects.mysql import MySQL
from fastdedup.sql.faults import DatabaseFault, LockedError, translated
from fastdedup.sync.sql import Inbox as SyncInbox

from ..waiting import wait_until
from .conftest import Opener
from .places import Place
from .ways import WAYS, WEEK, Party, engine_of

Of = Callable[[str], Opener]
ON_POSTGRES = [name for name, way in WAYS.items() if way.kind == "postgresql"]
ON_MARIADB = [name for name, way in WAYS.items() if way.kind == "mysql"]


async def commit(party: Party, key: str, result: Any = None) -> None:
    """Receive and complete a key in a transaction of its own."""
    async with party.transaction():
        receipt = await party.receive(party.inbox(), key)
        await party.call(receipt.complete, result)


@pytest.mark.parametrize("name", ON_POSTGRES)
async def test_a_twin_after_the_snapshot_asks_for_a_retry(of: Of, key: str, name: str) -> None:
    level = "SERIALIZABLE" if "session" in name else "REPEATABLE READ"
    async with of(name)() as party, of(name)() as other:
        await party.start()
        await party.sql(f"SET TRANSACTION ISOLATION LEVEL {level}")
        await party.sql("SELECT 1 FROM work")
        await commit(other, key, "theirs")
        with pytest.raises(RetryTransaction):
            await party.receive(party.inbox(), key)
        await party.rollback()
        async with party.transaction():
            assert (await party.receive(party.inbox(), key)).replay() == "theirs"


@pytest.mark.parametrize("name", ON_MARIADB)
async def test_repeatable_read_sees_the_twins_result(of: Of, key: str, name: str) -> None:
    async with of(name)() as party, of(name)() as other:
        await party.start()
        await party.sql("SELECT note FROM work LIMIT 1")
        await commit(other, key, "theirs")
        assert (await party.receive(party.inbox(), key)).replay() == "theirs"
        await party.commit()


@pytest.mark.parametrize("busy", ["wait", "skip"])
async def test_snapshot_isolation_asks_for_a_retry(of: Of, key: str, busy: str) -> None:
    async with of("aiomysql")() as party, of("aiomysql")() as other:
        await party.sql("SET SESSION innodb_snapshot_isolation = ON")
        await party.sql("SET SESSION innodb_lock_wait_timeout = 7")
        await party.start()
        await party.sql("SELECT note FROM work LIMIT 1")
        await commit(other, key)
        with pytest.raises(RetryTransaction):
            await party.receive(party.inbox(), key, busy=busy)
        await party.rollback()
        assert await party.sql("SELECT @@innodb_lock_wait_timeout") == [(7,)]


@pytest.mark.parametrize("name", ["asyncpg", "psycopg", "pymysql", "aiomysql", "session psycopg"])
async def test_a_deadlock_asks_one_of_both_for_a_retry(of: Of, key: str, name: str) -> None:
    async with of(name)() as ours, of(name)() as other:
        for party, own in ((ours, "a"), (other, "b")):
            await party.start()
            if party.place.kind == "postgresql":
                await party.sql("SET LOCAL deadlock_timeout = '20ms'")
            await party.receive(party.inbox(), f"{key} {own}")
        first = asyncio.create_task(crossed(ours, f"{key} b"))
        await wait_until(lambda: ours.place.waiting() == 1, description="the first waits")
        found = [await crossed(other, f"{key} a"), await first]
        assert set(found) == {Outcome.ACQUIRED, RetryTransaction}


async def crossed(party: Party, key: str) -> Any:
    """Receive what the other party holds; roll back, so that the other one goes on."""
    try:
        return (await party.receive(party.inbox(), key)).outcome
    except RetryTransaction:
        return RetryTransaction
    finally:
        await party.rollback()


LOCKED = {"postgresql": "SET LOCAL lock_timeout = '1ms'", "mysql": "SET SESSION innodb_lock_wait_timeout = 0"}
STATEMENT_TIME = {
    "postgresql": "SET LOCAL statement_timeout = '20ms'",
    "mysql": "SET SESSION max_statement_time = 0.02",
}


@pytest.mark.parametrize(
    ("limit", "told"),
    [(LOCKED, "a lock was not given in time"), (STATEMENT_TIME, None)],
    ids=["a lock not given in time", "a statement that takes too long"],
)
async def test_the_databases_limit_asks_for_a_retry(
    server_way: Opener, key: str, limit: dict[str, str], told: str | None
) -> None:
    """A limit for each statement also ends the inbox's own, which waits for a twin in flight."""
    async with server_way() as ours, server_way() as other:
        await ours.start()
        await ours.receive(ours.inbox(), key)
        await other.start()
        await other.sql(limit[other.place.kind])
        with pytest.raises(RetryTransaction, match=told):
            await other.receive(other.inbox(), key)
        await other.rollback()
        await ours.rollback()


@pytest.mark.parametrize(("ends", "error"), [(0, LockedError), (1, RetryTransaction)])
def test_a_timeout_that_rolls_all_back_skips_no_twin(ends: int, error: type[Exception]) -> None:
    """innodb_rollback_on_timeout is set where the server starts, so the flow is asked without one."""
    flow = MySQL(TableName("inbox")).insert_unless_busy(b"i" * 16, None)
    assert "rollback_on_timeout" in next(flow).sql
    assert flow.send(Rows([(50, "10.11-MariaDB", ends)], 1)).sql.endswith("= 0")
    assert "INSERT" in flow.send(Rows([], 0)).sql
    assert flow.throw(LockedError("locked")).sql.endswith("= 50")
    with pytest.raises(RetryTransaction) as caught:
        flow.send(Rows([], 0))
    assert type(caught.value) is error


def test_a_busy_sqlite_asks_for_a_retry(sqlite_place: Place, key: str) -> None:
    file = sqlite_place.database.file
    inbox = SyncInbox("tests", keep=WEEK)
    engine = engine_of(sqlite_place.database.urls["pysqlite"])
    with closing(sqlite3.connect(file, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        with closing(sqlite3.connect(file, timeout=0)) as bare, pytest.raises(RetryTransaction):
            inbox.receive(bare, key)
        with Session(engine) as session:
            session.execute(text("PRAGMA busy_timeout = 0"))
            with pytest.raises(RetryTransaction):
                inbox.receive(session, key)
        writer.rollback()


def test_a_stale_snapshot_of_sqlite_asks_for_a_retry(sqlite_place: Place, key: str) -> None:
    file = sqlite_place.database.file
    inbox = SyncInbox("tests", keep=WEEK)
    with closing(sqlite3.connect(file, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM work").fetchall()
        sqlite_place.sql(f"INSERT INTO work VALUES ('{key}')")
        with pytest.raises(RetryTransaction):
            inbox.receive(reader, key)


@pytest.mark.parametrize("name", ["asyncpg", "aiomysql", "aiosqlite"])
async def test_opposite_orders_of_keys_do_not_deadlock(of: Of, key: str, name: str) -> None:
    keys = [f"{key} {number}" for number in range(20)]
    async with of(name)() as ours, of(name)() as other:
        for _ in range(5):
            await asyncio.gather(many(ours, keys), many(other, keys[::-1]))


async def many(party: Party, keys: list[str]) -> None:
    await party.start()
    await party.call(party.inbox().receive_many, party.raw, keys)
    await party.rollback()


# What a database's error means, by its code: the codes that a test cannot make a server give.


OF_STATES = {
    "40001": DatabaseFault.RETRY,
    "40P01": DatabaseFault.RETRY,
    "40003": DatabaseFault.UNKNOWN,  # the completion of a statement is unknown
    "55P03": DatabaseFault.LOCKED,
    "25006": DatabaseFault.STANDBY,
    "25P02": DatabaseFault.ABORTED,
    "3F000": DatabaseFault.NO_TABLE,
    "08006": DatabaseFault.UNKNOWN,
    "57P01": DatabaseFault.UNKNOWN,  # the server shuts down
    "XX000": DatabaseFault.UNKNOWN,
    "23505": DatabaseFault.REFUSED,
    "57014": DatabaseFault.TIMED_OUT,
}
OF_NUMBERS = {
    1213: DatabaseFault.RETRY,
    1020: DatabaseFault.RETRY,
    3101: DatabaseFault.RETRY,  # group replication refuses the COMMIT
    1205: DatabaseFault.LOCKED,
    1290: DatabaseFault.STANDBY,
    1836: DatabaseFault.STANDBY,
    1969: DatabaseFault.TIMED_OUT,
    3024: DatabaseFault.TIMED_OUT,
    1146: DatabaseFault.NO_TABLE,
    1049: DatabaseFault.NO_TABLE,
    3572: DatabaseFault.LOCKED,  # NOWAIT
    1040: DatabaseFault.UNKNOWN,  # too many connections
    1047: DatabaseFault.UNKNOWN,  # a node that is cut off from its cluster
    1053: DatabaseFault.UNKNOWN,  # the server shuts down
    1317: DatabaseFault.UNKNOWN,  # interrupted, perhaps in the COMMIT
    2006: DatabaseFault.UNKNOWN,
    2013: DatabaseFault.UNKNOWN,
    4031: DatabaseFault.UNKNOWN,
    1062: DatabaseFault.REFUSED,
    3819: DatabaseFault.REFUSED,
}
OF_CODES = {
    sqlite3.SQLITE_BUSY: DatabaseFault.RETRY,
    sqlite3.SQLITE_BUSY_SNAPSHOT: DatabaseFault.RETRY,
    sqlite3.SQLITE_LOCKED: DatabaseFault.RETRY,
    sqlite3.SQLITE_READONLY_DIRECTORY: DatabaseFault.READ_ONLY,
    sqlite3.SQLITE_CONSTRAINT_UNIQUE: DatabaseFault.REFUSED,
    sqlite3.SQLITE_IOERR_FSYNC: DatabaseFault.UNKNOWN,
    sqlite3.SQLITE_FULL: DatabaseFault.UNKNOWN,
}


def of_psycopg(state: str) -> Exception:
    error = psycopg.OperationalError("said so")
    error.sqlstate = state
    return error


def of_mariadb(number: int) -> Exception:
    """As MariaDB's own connector has it: PostgreSQL's reader takes its SQLSTATE for a refusal."""
    error: Exception = type("DatabaseError", (Exception,), {"__module__": "mariadb"})(f"said so ({number})")
    vars(error).update(errno=number, sqlstate="HY000")
    return error


def of_sqlite(code: int) -> Exception:
    error = sqlite3.OperationalError("said so")
    error.sqlite_errorcode = code
    return error


ERRORS = [
    *((of_psycopg(state), fault) for state, fault in OF_STATES.items()),
    *((pymysql.err.OperationalError(number, "said so"), fault) for number, fault in OF_NUMBERS.items()),
    *((of_mariadb(number), fault) for number, fault in {**OF_NUMBERS, 0: DatabaseFault.UNKNOWN}.items()),
    *((of_sqlite(code), fault) for code, fault in OF_CODES.items()),
    (Exception({"S": "ERROR", "C": "55P03", "M": "said so"}), DatabaseFault.LOCKED),  # as pg8000 has it
    (psycopg.OperationalError("the connection is lost"), DatabaseFault.UNKNOWN),
    (pymysql.err.InterfaceError(0, ""), DatabaseFault.UNKNOWN),
    (ConnectionResetError(), DatabaseFault.UNKNOWN),
]


@pytest.mark.parametrize(("error", "fault"), ERRORS, ids=[repr(error)[:60] for error, _ in ERRORS])
def test_an_error_means_the_same_however_it_is_wrapped(error: Exception, fault: DatabaseFault) -> None:
    assert fault_of(error) is fault
    assert fault_of(DBAPIError("SELECT 1", {"secret": 7}, error)) is fault
    by_django = utils.OperationalError("said so")
    by_django.__cause__ = error
    assert fault_of(by_django) is fault


def test_an_error_shows_neither_statement_nor_parameters() -> None:
    told = translated(
        DatabaseFault.RETRY, DBAPIError("SELECT 1", {"secret": 7}, of_psycopg("40001")), "inbox"
    )
    assert "(said so)" in str(told)
    assert "secret" not in str(told)
