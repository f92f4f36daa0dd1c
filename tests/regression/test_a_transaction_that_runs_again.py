"""A transaction that the database ended, and that ran again, sent its requests to the next hop under other keys.

One `ClaimedWork`, which counts the requests, spanned all runs of the transaction: the second run's first charge was
counted as the work's second one. So the bank charged twice.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import httpx
import pytest

from fastdedup import Dedup, sync
from fastdedup.client.httpx import AsyncIdempotentTransport, IdempotentTransport
from fastdedup.messages import MessageRules
from fastdedup.messages.decisions import Action, Decision
from fastdedup.messages.deliveries import Deliveries
from fastdedup.sql import Inbox
from fastdedup.sync.sql import Inbox as SyncInbox
from fastdedup.testing import inbox_database

KEEP = 86_400
NOBODY = "unix:///nowhere/redis.sock"
WITH_AND_WITHOUT_THE_GATE = pytest.mark.parametrize("url", ["memory://", NOBODY], ids=["gate", "gate down"])


class Bank:
    """Charges once for each key that it is sent."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.transport = httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.keys.append(request.headers["Idempotency-Key"])
        return httpx.Response(200)

    async def pay(self) -> None:
        """Send two requests to one address."""
        async with httpx.AsyncClient(transport=AsyncIdempotentTransport(self.transport)) as client:
            for _ in range(2):
                await client.post("http://bank/charges")

    def pay_now(self) -> None:
        """Do as `pay`."""
        with httpx.Client(transport=IdempotentTransport(self.transport)) as client:
            for _ in range(2):
                client.post("http://bank/charges")

    def check(self) -> None:
        """See that the work ran twice, and sent the same keys in the same order."""
        assert len(self.keys) == 4
        assert self.keys[:2] == self.keys[2:]
        assert len(set(self.keys)) == 2


class Database:
    """A file of SQLite whose first COMMIT gets SQLITE_BUSY, as somebody reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = sqlite3.connect(path)
        self._reader.execute("BEGIN")
        self._reader.execute("SELECT 1 FROM sqlite_master").fetchall()

    def end_reading(self) -> None:
        """Let the next COMMIT through."""
        self._reader.close()

    @contextmanager
    def begin_now(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=0.0)) as connection:
            try:
                with connection:
                    yield connection
            finally:
                self.end_reading()

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[aiosqlite.Connection]:
        async with aiosqlite.connect(self.path, timeout=0.0) as connection:
            try:
                yield connection
                await connection.commit()
            except BaseException:
                await connection.rollback()
                raise
            finally:
                self.end_reading()


@contextmanager
def database(inbox: Any, folder: Path) -> Iterator[Database]:
    with inbox_database(inbox, path=folder / "inbox.db"):
        found = Database(folder / "inbox.db")
        try:
            yield found
        finally:
            found.end_reading()


@WITH_AND_WITHOUT_THE_GATE
async def test_each_run_sends_the_same_keys(tmp_path: Path, url: str) -> None:
    bank, inbox = Bank(), Inbox("billing", keep=KEEP)
    with database(inbox, tmp_path) as place:
        async with Dedup(url, namespace="s", timeout=0.25) as gate:

            @inbox.once(key=lambda transaction, order: order, begin=place.begin, gate=gate)
            async def pay(transaction: Any, order: str) -> None:
                await bank.pay()

            await pay("order-1")
    bank.check()


@WITH_AND_WITHOUT_THE_GATE
def test_each_run_of_synchronous_code_sends_the_same_keys(tmp_path: Path, url: str) -> None:
    bank, inbox = Bank(), SyncInbox("billing", keep=KEEP)
    with database(inbox, tmp_path) as place, sync.Dedup(url, namespace="s", timeout=0.25) as gate:

        @inbox.once(key=lambda transaction, order: order, begin=place.begin_now, gate=gate)
        def pay(transaction: Any, order: str) -> None:
            bank.pay_now()

        pay("order-1")
    bank.check()


@WITH_AND_WITHOUT_THE_GATE
async def test_each_run_of_a_consumer_sends_the_same_keys(tmp_path: Path, url: str) -> None:
    bank, inbox = Bank(), Inbox("billing", keep=KEEP)

    async def work(transaction: Any, message: str) -> None:
        await bank.pay()

    async def lay(decision: Decision) -> None:
        raise AssertionError(decision)

    with database(inbox, tmp_path) as place:
        async with Dedup(url, namespace="s", timeout=0.25) as gate:
            deliveries = Deliveries(MessageRules("orders", str), gate, inbox, place.begin)
            assert (await deliveries.handle("m-1", work, lay)).action is Action.ACK
    bank.check()
