"""A file of SQLite with an inbox and a table of work, and a transaction in it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import aiosqlite

from fastdedup.sql.dialects import TableName, dialect_of
from fastdedup.sql.rules import TABLE


def make_tables(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(dialect_of("sqlite", TableName(TABLE)).ddl())
        connection.execute("CREATE TABLE work (id)")


def work_in(path: Path) -> list[Any]:
    """Return the ids of the work that was committed."""
    with closing(sqlite3.connect(path)) as connection:
        return [id_ for (id_,) in connection.execute("SELECT id FROM work")]


@asynccontextmanager
async def transaction(path: Path) -> AsyncIterator[aiosqlite.Connection]:
    async with aiosqlite.connect(path, isolation_level=None) as connection:
        await connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            await connection.rollback()
            raise
        await connection.commit()


@contextmanager
def transaction_now(path: Path) -> Iterator[sqlite3.Connection]:
    """Begin and end a transaction of synchronous code."""
    with closing(sqlite3.connect(path)) as connection, connection:
        yield connection
