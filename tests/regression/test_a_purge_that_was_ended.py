"""A purge ended with the first batch that the database ended, and had counted that batch's rows as deleted."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import aiosqlite
import pytest

from fastdedup.sql import Inbox, RetryTransaction
from fastdedup.sql.dialects import TableName, dialect_of
from fastdedup.sync.sql import Inbox as SyncInbox

KEEP = 60.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An inbox with three rows from 1970."""
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.executescript(dialect_of("sqlite", TableName("fastdedup_inbox")).ddl())
        rows = "VALUES (x'01', 1), (x'02', 2), (x'03', 3)"
        connection.execute(f"INSERT INTO fastdedup_inbox (id, at) {rows}")
    return file


class Obstacle:
    """Another connection: `BEGIN IMMEDIATE` stops each statement of the purge, an open SELECT stops its COMMIT."""

    def __init__(self, file: Path, statement: str, times: int) -> None:
        self._connection = sqlite3.connect(file, isolation_level=None)
        self._cursor = self._connection.execute(statement)
        self._times = times

    def meet(self) -> None:
        """Be there for the first `times` transactions."""
        if not self._times:
            self._cursor.close()
            self._connection.close()
        self._times -= 1


OBSTACLES = ["BEGIN IMMEDIATE", "SELECT * FROM fastdedup_inbox"]


@pytest.mark.parametrize("statement", OBSTACLES)
def test_a_synchronous_purge_runs_an_ended_batch_again(file: Path, statement: str) -> None:
    begin, counts = transactions(file, Obstacle(file, statement, times=2)), []
    inbox = SyncInbox("shop", keep=KEEP, begin=begin)
    assert inbox.purge(on_batch=counts.append) == 3
    assert counts == [3]


def transactions(file: Path, obstacle: Obstacle) -> Callable[[], object]:
    @contextmanager
    def begin() -> Iterator[sqlite3.Connection]:
        obstacle.meet()
        with closing(sqlite3.connect(file, timeout=0.0)) as connection, connection:
            yield connection

    return begin


@pytest.mark.parametrize("statement", OBSTACLES)
async def test_an_asynchronous_purge_runs_an_ended_batch_again(file: Path, statement: str) -> None:
    obstacle, counts = Obstacle(file, statement, times=2), []

    @asynccontextmanager
    async def begin() -> AsyncIterator[aiosqlite.Connection]:
        obstacle.meet()
        async with aiosqlite.connect(file, timeout=0.0) as connection:
            yield connection
            await connection.commit()

    assert await Inbox("shop", keep=KEEP, begin=begin).purge(on_batch=counts.append) == 3
    assert counts == [3]


def test_a_purge_does_not_try_for_ever(file: Path) -> None:
    obstacle = Obstacle(file, "BEGIN IMMEDIATE", times=5)
    with pytest.raises(RetryTransaction, match="database is locked"):
        SyncInbox("shop", keep=KEEP, begin=transactions(file, obstacle)).purge()
    obstacle.meet()
