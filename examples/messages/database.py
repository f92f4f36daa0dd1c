"""What the messages leave behind: a row for each payment, in the transaction of the inbox's row, on SQLite."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fastdedup.sql import Inbox

from ..payments import INBOX_TABLE

if TYPE_CHECKING:
    from aiosqlite import Connection

    Begin = Callable[[], AbstractAsyncContextManager[Connection]]

KEEP: Final = 7 * 86_400.0
_BUSY: Final = 20.0
"""Seconds to wait for another consumer's transaction: SQLite lets one write at a time."""
# Without a sync at each commit a transaction outlives its process, and that is what is killed here.
_QUICK: Final = "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;"


class Payments:
    """The database, as the process sees it that counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database = sqlite3.connect(path, timeout=_BUSY)
        self._database.executescript(f"{_QUICK} CREATE TABLE payments (message TEXT NOT NULL); {INBOX_TABLE}")

    def count(self) -> int:
        """Return how many payments were made."""
        (count,) = self._database.execute("SELECT count(*) FROM payments").fetchone()
        return int(count)

    def by_message(self) -> Counter[str]:
        """Return how often each message was paid."""
        return Counter(row[0] for row in self._database.execute("SELECT message FROM payments"))

    def close(self) -> None:
        """Close the database."""
        self._database.close()


@asynccontextmanager
async def paying(path: str) -> AsyncIterator[Inbox]:
    """Yield the consumer's inbox, whose transactions take turns on one connection."""
    import aiosqlite
    import anyio

    turn = anyio.Lock()
    async with aiosqlite.connect(path, timeout=_BUSY, isolation_level=None) as database:
        await database.execute("PRAGMA synchronous = NORMAL")

        @asynccontextmanager
        async def begin() -> AsyncIterator[Connection]:
            async with turn:
                try:
                    await database.execute("BEGIN IMMEDIATE")
                    yield database
                except BaseException:
                    with anyio.CancelScope(shield=True):
                        await database.rollback()
                    raise
                await database.commit()

        yield Inbox("messages", keep=KEEP, begin=begin)


async def pay(transaction: Connection, message: str) -> None:
    """Do a message's work."""
    await transaction.execute("INSERT INTO payments (message) VALUES (?)", (message,))
