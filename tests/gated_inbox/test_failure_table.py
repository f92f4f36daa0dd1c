"""The failure table of gate and inbox, over asyncpg: each row with real servers, killed at that point."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from fastdedup import LocalLRU
from fastdedup.events import GateBypassed, LeaseLost, Replayed
from fastdedup.model import State
from fastdedup.sql import once

from ..servers import RedisServer
from .shop import WAYS, Place, Shop, answer, at_work, broken, flush, is_unsettled, open_shop, redelivered
from .times import LEASE

LOST = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)
"""What asyncpg raises where the connection is lost."""
Waiter = Callable[..., Awaitable[Any]]
BRIEF = {"timeout": 0.1}
PROMPT = 10.0
"""Seconds: far below the 30 that these tests would wait at the gate, also on a busy machine."""


# Redis is down


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_without_redis_the_inbox_decides_at_once(
    how: str, mortal_postgres: Place, mortal_redis: RedisServer, key: str
) -> None:
    async with open_shop(mortal_postgres, mortal_redis, wait=30.0, gate=BRIEF) as shop:
        shop.act = answer({"invoice": 7})
        with broken(mortal_redis, how):
            began = time.monotonic()
            assert await shop.handle(key) == {"invoice": 7}
            assert await shop.handle(key) == {"invoice": 7}
            assert time.monotonic() - began < PROMPT
        assert (shop.runs, shop.place.effects(key)) == (1, 1)
        bypasses = [event for event in shop.events if isinstance(event, GateBypassed)]
        assert [event.inbox for event in bypasses] == ["shop", "shop"]
        assert bypasses[0].namespace == shop.gate.settings.namespace
        assert bypasses[0].reason


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_a_waiter_at_the_gate_goes_on_without_redis(
    how: str,
    mortal_postgres: Place,
    mortal_redis: RedisServer,
    key: str,
    wait_until: Waiter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Redis fails while a duplicate waits there for the first: it asks the inbox, long before its wait is over."""
    monkeypatch.setattr(once, "LOOK", 0.1)
    monkeypatch.setattr(once, "MENDING", 0.1)
    async with open_shop(mortal_postgres, mortal_redis, wait=30.0, gate={"timeout": 0.25}) as shop:
        go_on, first = await at_work(shop, shop.handle(key), wait_until)
        second = asyncio.create_task(shop.elsewhere(key))
        await wait_until(
            lambda: shop.gate._namespace.connection.wakeups._count, description="the second waits"
        )
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
    mortal_postgres: Place, mortal_redis: RedisServer, key: str, wait_until: Waiter
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


@pytest.mark.parametrize("way", WAYS)
async def test_a_lost_reply_of_commit_leaves_the_gate_alone(
    way: str, mortal_postgres: Place, mortal_redis: RedisServer, key: str, wait_until: Waiter
) -> None:
    async with open_shop(mortal_postgres, mortal_redis, way, gate={"lease": LEASE}) as shop:
        shop.act = answer(7)
        shop.place.proxy.lose()
        with pytest.raises(Exception, match=r"(?i)connection") as failed:
            await shop.handle(key)
        assert shop.place.effects(key) == 1
        assert is_unsettled(await shop.record(key))
        # The error that the caller keeps does not keep the lease alive.
        assert await wait_until(lambda: redelivered(shop, key), description="the lease ends") == [7]
        assert (shop.runs, shop.place.effects(key)) == (1, 1)
        assert (await shop.gate.claim(shop.gate_key(key))).result == 7
        del failed


@pytest.mark.parametrize("way", WAYS)
async def test_a_commit_that_never_arrived_is_done_later(
    way: str, mortal_postgres: Place, mortal_redis: RedisServer, key: str, wait_until: Waiter
) -> None:
    async with open_shop(mortal_postgres, mortal_redis, way, gate={"lease": LEASE}) as shop:
        shop.act = answer(7)
        shop.place.proxy.cut()
        with pytest.raises(Exception, match=r"(?i)connection"):
            await shop.handle(key)
        assert is_unsettled(await shop.record(key))
        assert await wait_until(lambda: redelivered(shop, key), description="the lease ends") == [7]
        assert (shop.runs, shop.place.effects(key)) == (2, 1)


@pytest.mark.parametrize("how", ["before", "after"])
async def test_a_server_killed_at_commit_leaves_the_gate_alone(
    how: str, mortal_postgres: Place, mortal_redis: RedisServer, key: str, wait_until: Waiter
) -> None:
    server, proxy = mortal_postgres.server, mortal_postgres.proxy
    async with open_shop(mortal_postgres, mortal_redis, gate={"lease": LEASE}) as shop:
        shop.act = answer(7)
        (proxy.cut if how == "before" else proxy.lose)(server.kill)
        with pytest.raises(LOST):
            await shop.handle(key)
        assert is_unsettled(await shop.record(key))
        server.start()
        assert await wait_until(lambda: redelivered(shop, key), description="the lease ends") == [7]
        assert (shop.runs, shop.place.effects(key)) == (2 if how == "before" else 1, 1)


# The lease is lost, the gate forgets, the database is down, the row is purged


async def test_two_owners_do_the_work_once(
    mortal_postgres: Place, mortal_redis: RedisServer, key: str, wait_until: Waiter
) -> None:
    """Redis forgets the first owner's claim: the second waits at the first's row, and answers by it."""
    async with open_shop(mortal_postgres, mortal_redis, gate={"lease": LEASE}) as shop:
        go_on, first = await at_work(shop, shop.handle(key), wait_until)
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
    mortal_postgres: Place, mortal_redis: RedisServer, key: str, wait_until: Waiter
) -> None:
    async with open_shop(mortal_postgres, mortal_redis) as shop:
        go_on = asyncio.Event()

        async def act(transaction: Any, key: str) -> str:
            if shop.runs == 1:
                await go_on.wait()
                raise LookupError(key)
            return key

        shop.act = act
        first = asyncio.create_task(shop.handle(key))
        await wait_until(lambda: shop.runs, description="the first is at work")
        flush(mortal_redis)
        second = asyncio.create_task(shop.handle(key))
        await wait_until(shop.place.waiting, description="the second waits for the first's row")
        go_on.set()
        with pytest.raises(LookupError):
            await first
        assert await second == key
        assert (shop.runs, shop.place.effects(key)) == (2, 1)
        assert (await shop.record(key)).result == key  # type: ignore[union-attr]


async def test_the_row_answers_where_redis_forgot(
    mortal_postgres: Place, mortal_redis: RedisServer, key: str
) -> None:
    async with open_shop(mortal_postgres, mortal_redis) as shop:
        shop.act = answer([1, "Zoë"])
        await shop.handle(key)
        flush(mortal_redis)
        assert await shop.handle(key) == [1, "Zoë"]
        assert shop.runs == 1
        assert (await shop.record(key)).result == [1, "Zoë"]  # type: ignore[union-attr]  # mended


@pytest.mark.parametrize("when", ["before", "under the work"])
async def test_without_a_database_the_gate_is_free_again(
    when: str, mortal_postgres: Place, mortal_redis: RedisServer, key: str
) -> None:
    server = mortal_postgres.server
    async with open_shop(mortal_postgres, mortal_redis) as shop:

        async def act(transaction: Any, key: str) -> str:
            if shop.runs == 1 and when != "before":
                server.kill()
                await transaction.execute("SELECT 1")
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


async def test_a_message_older_than_keep_is_handled_twice(
    mortal_postgres: Place, mortal_redis: RedisServer, key: str, wait_until: Waiter
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
