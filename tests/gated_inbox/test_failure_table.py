"""The failure table of gate and inbox: each row with real servers, killed at that point.

Over synchronous drivers stand the rows whose code is another one there.
"""

from __future__ import annotations

import asyncio
import time
from threading import current_thread
from typing import Any

import asyncpg
import psycopg
import pymysql
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from fastdedup import LocalLRU
from fastdedup.events import GateBypassed, LeaseLost, Replayed
from fastdedup.messages import Action, Reason
from fastdedup.messages.dispatch import Dispatcher
from fastdedup.model import State
from fastdedup.sql import Inbox, once
from fastdedup.sync import sql as sync_sql

from ..servers import RedisServer
from ..waiting import wait_until
from .shop import WAYS, Place, Shop, answer, at_work, broken, flush, is_unsettled, open_shop, redelivered
from .sync_shop import SYNC_WAYS, open_either, open_sync_shop
from .times import LEASE, WEEK

LOST = (
    *(asyncpg.PostgresError, asyncpg.InterfaceError, OSError),
    *(psycopg.OperationalError, pymysql.OperationalError, pymysql.InterfaceError, DBAPIError),
)
"""What drivers raise if the connection is lost."""
each_way = pytest.mark.parametrize("way", ["asyncpg", *SYNC_WAYS])
BRIEF = {"timeout": 0.1}
PROMPT = 10.0
"""Seconds: far below the 30 that these tests would wait at the gate, also on a busy machine."""


# Redis is down


@each_way
@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_without_redis_the_inbox_decides_at_once(
    how: str, way: str, place: Place, mortal_redis: RedisServer, key: str
) -> None:
    async with open_either(place, mortal_redis, way, wait=30.0, gate=BRIEF) as shop:
        shop.act = answer({"invoice": 7})
        with broken(mortal_redis, how):
            began = time.monotonic()
            assert await shop.handle(key) == {"invoice": 7}
            assert await shop.handle(key) == {"invoice": 7}
            assert time.monotonic() - began < PROMPT
        assert (shop.runs, shop.place.effects(key)) == (1, 1)
        bypasses = await shop.bypasses()
        assert [event.inbox for event in bypasses] == ["shop", "shop"]
        assert bypasses[0].namespace == shop.gate.settings.namespace
        assert bypasses[0].reason


async def test_the_event_of_a_bypass_comes_from_the_gates_thread(
    mortal_postgres: Place, mortal_redis: RedisServer, key: str
) -> None:
    """As all its events do: a callback is never called by two threads at once."""
    threads: set[str] = set()

    def hear(event: object) -> None:
        threads.add(f"{type(event).__name__} in {current_thread().name}")

    async with open_sync_shop(mortal_postgres, mortal_redis, gate={"on_event": hear}) as shop:
        with broken(mortal_redis, "killed"):
            await shop.handle(key)
        await shop.bypasses()
    assert "GateBypassed in fastdedup-sync" in threads
    assert not {each for each in threads if not each.endswith(" in fastdedup-sync")}


@pytest.mark.parametrize("way", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_a_waiter_at_the_gate_goes_on_without_redis(
    how: str, way: str, place: Place, mortal_redis: RedisServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis fails while a duplicate waits there for the first: it asks the inbox, long before its wait is over."""
    monkeypatch.setattr(once, "LOOK", 0.1)
    monkeypatch.setattr(once, "MENDING", 0.1)
    monkeypatch.setattr(sync_sql, "MENDING", 0.1)
    async with open_either(place, mortal_redis, way, wait=30.0, gate={"timeout": 0.25}) as shop:
        go_on, first = await at_work(shop, shop.handle(key))
        second = asyncio.create_task(shop.elsewhere(key))
        await wait_until(lambda: shop.waiters, description="the second waits")
        with broken(mortal_redis, how):
            began = time.monotonic()
            await wait_until(shop.place.waiting, description="the second waits for the first's row")
            go_on.set()
            assert await asyncio.gather(first, second) == [key, key]
            assert time.monotonic() - began < PROMPT
        assert shop.runs == shop.place.effects(key) == 1


async def test_redis_dies_under_the_work(
    mortal_postgres: Place, mortal_redis: RedisServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate cannot be told of the result; the next delivery learns it from the row."""
    monkeypatch.setattr(once, "MENDING", 0.1)
    async with open_shop(mortal_postgres, mortal_redis) as shop:

        async def kill_redis(transaction: Any, key: str) -> str:
            mortal_redis.kill()
            return key

        shop.act = kill_redis
        try:
            assert await shop.handle(key) == key
        finally:
            mortal_redis.start()
        assert await shop.handle(key) == key
        assert shop.runs == shop.place.effects(key) == 1


async def test_a_gate_that_answers_alone_is_no_bypass(
    mortal_postgres: Place, mortal_redis: RedisServer, key: str
) -> None:
    """LocalLRU answers in the outage: the duplicate does not reach the database, and Redis learns of it later."""
    policy = {"on_unavailable": LocalLRU()}
    async with open_shop(mortal_postgres, mortal_redis, gate=policy) as shop:
        shop.act = answer(7)
        with broken(mortal_redis, "killed"):
            assert [await shop.handle(key), await shop.handle(key)] == [7, 7]
            assert not [event for event in shop.events if isinstance(event, GateBypassed)]
        await wait_until(
            lambda: [event for event in shop.events if isinstance(event, Replayed)],
            description="Redis has learnt of it",
        )
        assert (await shop.record(key)).result == 7  # type: ignore[union-attr]
        assert shop.runs == shop.place.effects(key) == 1


# The consumer dies: see test_killed_consumers.py. COMMIT fails


@pytest.mark.parametrize("way", [*WAYS, *SYNC_WAYS])
@pytest.mark.parametrize("kills", [False, True], ids=["the connection is lost", "the server is killed"])
@pytest.mark.parametrize("arrives", [False, True], ids=["before it arrives", "after it"])
async def test_a_commit_that_fails_leaves_the_gate_alone(
    arrives: bool, kills: bool, way: str, place: Place, mortal_redis: RedisServer, key: str
) -> None:
    """The error that the caller keeps does not keep the lease alive."""
    server, proxy = place.server, place.proxy
    async with open_either(place, mortal_redis, way, gate={"lease": LEASE}) as shop:
        shop.act = answer(7)
        fail = proxy.lose if arrives else proxy.cut
        fail(server.kill) if kills else fail()
        with pytest.raises(LOST, match=r"(?i)connection|Lost") as failed:
            await shop.handle(key)
        assert is_unsettled(await shop.record(key))
        if kills:
            server.start()
        assert shop.place.effects(key) == arrives
        assert await wait_until(lambda: redelivered(shop, key), description="the lease ends") == [7]
        assert (shop.runs, shop.place.effects(key)) == (1 if arrives else 2, 1)
        assert (await shop.record(key)).result == 7  # type: ignore[union-attr]
        del failed


# The lease is lost, the gate forgets, the database is down, the row is purged


@each_way
async def test_two_owners_do_the_work_once(
    way: str, place: Place, mortal_redis: RedisServer, key: str
) -> None:
    """Redis forgets the first owner's claim: the second waits at the first's row, and answers by it."""
    async with open_either(place, mortal_redis, way, gate={"lease": LEASE}) as shop:
        go_on, first = await at_work(shop, shop.handle(key))
        flush(mortal_redis)
        second = asyncio.create_task(shop.handle(key))
        await wait_until(shop.place.waiting, description="the second waits for the first's row")
        await wait_until(
            lambda: [event for event in shop.events if isinstance(event, LeaseLost)],
            description="the first has lost its lease",
        )
        go_on.set()
        assert await asyncio.gather(first, second) == [key, key]
        assert await wait_until(lambda: redelivered(shop, key), description="nobody holds the gate") == [key]
        assert shop.runs == shop.place.effects(key) == 1


async def test_a_second_owner_works_where_the_first_rolled_back(
    mortal_postgres: Place, mortal_redis: RedisServer, key: str
) -> None:
    async with open_shop(mortal_postgres, mortal_redis) as shop:
        go_on, first = await at_work(shop, shop.handle(key), fails=True)
        flush(mortal_redis)
        second = asyncio.create_task(shop.handle(key))
        await wait_until(shop.place.waiting, description="the second waits for the first's row")
        go_on.set()
        with pytest.raises(LookupError):
            await first
        assert await second == key
        assert (shop.runs, shop.place.effects(key)) == (2, 1)
        assert (await shop.record(key)).result == key  # type: ignore[union-attr]


@each_way
async def test_the_row_answers_where_redis_forgot(
    way: str, place: Place, mortal_redis: RedisServer, key: str
) -> None:
    async with open_either(place, mortal_redis, way) as shop:
        shop.act = answer([1, "Zoë"])
        await shop.handle(key)
        flush(mortal_redis)
        assert await shop.handle(key) == [1, "Zoë"]
        assert shop.runs == 1
        assert (await shop.record(key)).result == [1, "Zoë"]  # type: ignore[union-attr]  # mended


@each_way
@pytest.mark.parametrize("when", ["before", "under the work"])
async def test_without_a_database_the_gate_is_free_again(
    when: str, way: str, place: Place, mortal_redis: RedisServer, key: str
) -> None:
    server = place.server
    async with open_either(place, mortal_redis, way) as shop:

        async def act(transaction: Any, key: str) -> str:
            if shop.runs == 1 and when != "before":
                server.kill()
                await shop.ask(transaction, "SELECT 1")
            return key

        shop.act = act
        if when == "before":
            server.kill()
        try:
            with pytest.raises(LOST):
                await shop.handle(key)
            assert (await shop.record(key)).state is State.RELEASED  # type: ignore[union-attr]
        finally:
            server.start()
        assert await shop.handle(key) == key
        assert shop.place.effects(key) == 1


@pytest.mark.parametrize("where", ["body", "pause"])
async def test_an_interrupted_call_frees_the_gate(
    where: str,
    mortal_postgres: Place,
    mortal_redis: RedisServer,
    key: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also in the pause after a COMMIT that the database has refused: nothing of it has happened."""
    async with open_sync_shop(mortal_postgres, mortal_redis) as shop:

        def interrupt(*args: Any) -> None:
            raise KeyboardInterrupt

        if where == "pause":
            mortal_postgres.sql(*REFUSE_COMMITS)
            monkeypatch.setattr("time.sleep", interrupt)
        else:
            shop.act = interrupt
        try:
            with pytest.raises(KeyboardInterrupt):
                shop.handle_here(key)
        finally:
            mortal_postgres.sql("DROP TRIGGER IF EXISTS refuse ON work")
        assert (await shop.record(key)).state is State.RELEASED  # type: ignore[union-attr]
        shop.act = lambda transaction, key: key
        assert shop.handle_here(key) == key
        assert mortal_postgres.effects(key) == 1


async def test_a_message_older_than_keep_is_handled_twice(
    mortal_postgres: Place, mortal_redis: RedisServer, key: str
) -> None:
    """As the documentation says: keep rows longer than the broker keeps messages."""
    async with open_shop(mortal_postgres, mortal_redis, gate={"ttl": 0.001}) as shop:
        await shop.handle(key)
        shop.place.sql("UPDATE fastdedup_inbox SET at = at - interval '8 days'")
        assert await shop.inbox.purge(begin=shop.begin) >= 1
        await wait_until(lambda: forgotten(shop, key), description="the gate forgets, too")
        await shop.handle(key)
        assert shop.place.effects(key) == 2


async def forgotten(shop: Shop, key: str) -> bool:
    return await shop.record(key) is None


REFUSE_COMMITS = (
    """CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '40001'; END $$""",
    """CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON work DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION refuse()""",
)
"""Have PostgreSQL end each transaction with work by 40001 at its COMMIT."""


@pytest.mark.parametrize(
    ("losses", "expected"),
    [(1, (Action.ACK, Reason.FIRST, 2, 1)), (2, (Action.DEAD_LETTER, Reason.FAILED, 2, 0))],
    ids=["once", "twice"],
)
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_database_that_is_lost_once_under_a_handler_spends_no_attempt(
    driver: str, losses: int, expected: object, mortal_postgres: Place, key: str
) -> None:
    """Otherwise a restart of the database makes a dead letter of each message at its last attempt."""
    runs = 0
    engine = create_async_engine(mortal_postgres.database.urls[driver])

    async def pays(session: AsyncSession, message: str) -> None:
        nonlocal runs
        runs += 1
        if runs <= losses:
            mortal_postgres.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'"
            )
        await session.execute(text(f"INSERT INTO work VALUES ('{message}')"))

    orders = Dispatcher(
        "orders",
        None,
        key=str,
        inbox=Inbox("orders", keep=WEEK),
        begin=async_sessionmaker(engine).begin,
        attempts=1,
    )
    found = await orders.dispatch(key, pays)
    await engine.dispose()
    assert (found.action, found.reason, runs, mortal_postgres.effects(key)) == expected
