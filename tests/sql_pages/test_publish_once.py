"""docs/publish-once.md: its Python runs; a broker that loses confirms shows what the message id is for."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from fastdedup.sql.dialects import TableName, dialect_of

from .pages import Page

PAGE = Page("publish-once.md")
PUBLISH, CONSUME = PAGE.blocks("Claim, publish, confirm, complete", "python")
(CHAIN,) = PAGE.blocks("Publish what a transaction has done", "python")


class Broker:
    """Keeps what it gets, and loses its next confirms, or the messages themselves."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.lost_confirms = 0
        self.refusals = 0

    async def publish(self, body: int, message_id: str) -> None:
        if self.refusals:
            self.refusals -= 1
            raise ConnectionError("the broker has no room")
        self.messages.append(SimpleNamespace(body=body, message_id=message_id))
        if self.lost_confirms:
            self.lost_confirms -= 1
            raise ConnectionError("the confirm was lost")


@pytest.fixture
def broker() -> Broker:
    return Broker()


@asynccontextmanager
async def shop(folder: Path) -> AsyncIterator[Any]:
    """`Session` of the page: a database with an inbox, and an account with 1,000."""
    with closing(sqlite3.connect(folder / "shop.db")) as connection:
        connection.executescript(dialect_of("sqlite", TableName("fastdedup_inbox")).ddl())
        connection.executescript("CREATE TABLE account (id, balance); INSERT INTO account VALUES (7, 1000)")
    engine = create_async_engine(
        f"sqlite+aiosqlite:///{folder}/shop.db", connect_args={"isolation_level": "IMMEDIATE"}
    )
    yield async_sessionmaker(engine)
    await engine.dispose()


def balance(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "shop.db")) as connection:
        return int(connection.execute("SELECT balance FROM account").fetchone()[0])


@asynccontextmanager
async def publisher(redis_url: str) -> AsyncIterator[dict[str, Any]]:
    """The names of the page's first block, with its gate open."""
    names = PAGE.run(PUBLISH.replace("redis://localhost:6379/0", redis_url))
    async with names["dedup"]:
        yield names


async def test_a_confirmed_message_is_published_once(broker: Broker, redis_url: str) -> None:
    async with publisher(redis_url) as names:
        publish_once = names["publish_once"]
        ids = await asyncio.gather(*(publish_once(broker.publish, 5, "paid", 7) for _ in range(3)))
    assert [each.message_id for each in broker.messages] == ids[:1]
    assert len(set(ids)) == 1


async def test_a_lost_confirm_repeats_the_same_id(broker: Broker, redis_url: str, tmp_path: Path) -> None:
    broker.lost_confirms = 1
    async with publisher(redis_url) as names, shop(tmp_path) as session:
        with pytest.raises(ConnectionError):
            await names["publish_once"](broker.publish, 5, "paid", 7)
        await names["publish_once"](broker.publish, 5, "paid", 7)
        first, second = broker.messages
        assert first.message_id == second.message_id
        book = PAGE.run(CONSUME, Session=session)["book"]
        for each in broker.messages:
            await book(each)
    assert balance(tmp_path) == 1005


async def test_completed_before_the_confirm_is_lost(broker: Broker, redis_url: str) -> None:
    """The wrong way, beside the page's: the broker refuses a message that is marked as published."""
    swapped = re.sub(r"( +await publish\(.*\n)( +await claim\.complete\(.*\n)", r"\2\1", PUBLISH)
    assert swapped != PUBLISH
    for block, sent in ((swapped, 0), (PUBLISH, 1)):
        broker.refusals = 1
        names = PAGE.run(block.replace("redis://localhost:6379/0", redis_url).replace('"shop"', f'"s{sent}"'))
        async with names["dedup"]:
            with pytest.raises(ConnectionError):
                await names["publish_once"](broker.publish, 5, "paid", 7)
            await names["publish_once"](broker.publish, 5, "paid", 7)
        assert len(broker.messages) == sent


async def test_a_redelivery_publishes_what_was_committed(
    broker: Broker, redis_url: str, tmp_path: Path
) -> None:
    """The consumer fails between its COMMIT and the publish. The redelivery does not pay, but publishes."""
    acked: list[bool] = []

    async def ack() -> None:
        acked.append(True)

    delivery = SimpleNamespace(body=5, message_id="m-1", ack=ack)
    broker.refusals = 1
    async with publisher(redis_url) as names, shop(tmp_path) as session:
        code = "\n".join([CONSUME, CHAIN])
        consume = PAGE.run(code, Session=session, publish_once=names["publish_once"])["consume"]
        with pytest.raises(ConnectionError):
            await consume(delivery, broker.publish)
        assert (balance(tmp_path), broker.messages, acked) == (995, [], [])
        for _ in range(2):
            await consume(delivery, broker.publish)
    assert (balance(tmp_path), len(broker.messages), acked) == (995, 1, [True, True])


def test_each_block_of_the_page_has_a_test() -> None:
    assert PAGE.all_blocks("python") == [PUBLISH, CONSUME, CHAIN]
