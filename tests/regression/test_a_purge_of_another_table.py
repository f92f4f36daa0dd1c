"""A purge of a table that is no inbox deleted its old rows, where the table had a column `at`."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from fastdedup import ConfigError
from fastdedup.sql import Inbox
from fastdedup.sync.sql import Inbox as SyncInbox


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


def test_synchronous_purge_refuses_another_table(file: Path) -> None:
    @contextmanager
    def begin() -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(file)) as connection, connection:
            yield connection

    with pytest.raises(ConfigError, match="the table audit is no inbox: it has no column result"):
        SyncInbox("shop", keep=60.0, table="audit", begin=begin).purge()
    assert rows(file) == 1


async def test_asynchronous_purge_refuses_another_table(file: Path) -> None:
    @asynccontextmanager
    async def begin() -> AsyncIterator[aiosqlite.Connection]:
        async with aiosqlite.connect(file) as connection:
            yield connection
            await connection.commit()

    with pytest.raises(ConfigError, match="the table audit is no inbox: it has no column result"):
        await Inbox("shop", keep=60.0, table="audit", begin=begin).purge()
    assert rows(file) == 1
