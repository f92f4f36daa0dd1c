"""docs/recipes/consumer.md: its consumers do a message once, and their stored counts outlast a kill."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import create_async_engine

from examples.store_counts import total
from fastdedup.testing import inbox_database

from ..sql_pages.pages import Page
from ..waiting import wait_until

PAGE, ROOT = Page("recipes/consumer.md"), Path(__file__).parents[2]
URL = "redis://localhost:6379/0"
DEFINITIONS = PAGE.all_blocks("python")
IMMEDIATE = {"isolation_level": "IMMEDIATE"}
WITH_AN_INBOX = """
from datetime import timedelta
from sqlalchemy import text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from fastdedup.sql import Inbox

Session = async_sessionmaker(create_async_engine("postgresql+asyncpg://localhost/shop"))
inbox = Inbox("billing", keep=timedelta(days=7))           # its table: fastdedup inbox ddl
ONCE = {"inbox": inbox, "begin": Session.begin}            # Consumer(…, **ONCE)

async def book(session, entry):                            # in place of on_payment
    await session.execute(text("INSERT INTO booked VALUES (:amount)"), {"amount": int(entry.fields[b"amount"])})
"""
KILLED = """
import asyncio, os, signal
from examples.store_counts import consume_and_count

async def dies(entry):
    if entry.fields[b"amount"] == b"poison":
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with (
        Redis.from_url(URL) as redis,
        Dedup(URL, namespace="counts") as dedup,
        Consumer(redis, dedup, stream="payments", group="billing", key=field("id"), limit=1) as consumer,
    ):
        await consume_and_count(redis, consumer, dies)

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def page(redis_url: str) -> AsyncIterator[tuple[dict[str, Any], Any]]:
    """The page's names, and a client of Redis; the streams are removed at the end."""
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile("\n".join([*DEFINITIONS, WITH_AN_INBOX]).replace(URL, redis_url), PAGE.name, "exec"), names)
    async with Redis.from_url(redis_url) as client:
        try:
            yield names, client
        finally:
            await client.delete("payments", "payments.dead", "counts:billing")


async def test_poison_is_laid_down_and_the_rest_is_done_once(redis_url: str) -> None:
    async with page(redis_url) as (names, client):
        for name, amount in (("a", 500), ("a", 500), ("b", "poison"), ("c", 0), ("d", 70)):
            await client.xadd("payments", {"id": name, "amount": amount})
        consumers: list[Any] = []
        running = asyncio.create_task(names["consume"](consumers.append))

        async def all_are_done() -> bool:
            return await client.xlen("payments.dead") == 2 and len(names["booked"]) == 2

        await wait_until(all_are_done, description="two are booked, two are dead letters")
        consumers[0].stop()
        await running
        dead = {entry[b"id"]: entry for _, entry in await client.xrange("payments.dead")}
        assert sorted(names["booked"]) == [70, 500]
        assert dead[b"b"][b"x-fastdedup-attempts"] == b"3"
        assert b"this is no amount" in dead[b"b"][b"x-fastdedup-error"]
        assert dead[b"c"][b"x-fastdedup-attempts"] == b"1"


async def test_an_inbox_books_a_message_once(redis_url: str, tmp_path: Path) -> None:
    async with page(redis_url) as (names, client):
        with inbox_database(names["inbox"], path=tmp_path / "shop.db") as tables:
            tables.execute("CREATE TABLE booked (amount)"), tables.commit()
            engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db", connect_args=IMMEDIATE)
            names["Session"].configure(bind=engine)
            await client.xgroup_create("payments", "billing", id="0", mkstream=True)
            for _ in range(2):
                await client.xadd("payments", {"id": "a", "amount": 500})
            async with (
                names["Dedup"](redis_url, namespace="shop") as dedup,
                names["Consumer"](
                    client,
                    dedup,
                    stream="payments",
                    group="billing",
                    key=names["field"]("id"),
                    **names["ONCE"],
                ) as consumer,
            ):
                running = asyncio.create_task(consumer.run(names["book"]))
                await wait_until(
                    lambda: consumer.counts.duplicate == 1, description="the second one is known"
                )
                consumer.stop()
                await running
                assert await dedup.get(names["inbox"].gate_key("a")) is not None
            assert tables.execute("SELECT amount FROM booked").fetchall() == [(500,)]
            await engine.dispose()


async def test_a_handler_that_kills_its_process_loses_no_count(redis_url: str, tmp_path: Path) -> None:
    """Each of two processes works on one message, is given it again, and dies of the next one."""
    program = tmp_path / "consumer.py"
    program.write_text("\n".join([*DEFINITIONS, KILLED]).replace(URL, redis_url), encoding="utf-8")
    async with Redis.from_url(redis_url) as redis:
        await redis.xgroup_create("payments", "billing", id="0", mkstream=True)
        try:
            for number in range(2):
                for name, amount in (("a", 1), ("a", 1), (f"poison-{number}", "poison")):
                    await redis.xadd("payments", {"id": f"{number}{name}", "amount": amount})
                process = await asyncio.to_thread(
                    subprocess.run,
                    [sys.executable, str(program)],
                    timeout=30.0,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                )
                assert process.returncode == -signal.SIGKILL
            counted = {name: await total(redis, name) for name in ("delivered", "first", "duplicate")}
            assert counted == {"delivered": 6, "first": 2, "duplicate": 2}
            assert await redis.hlen("counts:billing") == 2
        finally:
            await redis.delete("payments", "counts:billing")
