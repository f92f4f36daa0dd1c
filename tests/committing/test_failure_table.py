"""The failure table of an endpoint that commits with its work: each line with real servers that fail at that point.

The lines of a process that dies are in `test_killed_servers.py`. Those of an error, of a COMMIT whose reply is lost,
and of a database that is down are in `test_drivers.py`, over each driver.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import text

from fastdedup import LocalLRU, UnavailableError
from fastdedup.events import GateBypassed, Replayed
from fastdedup.integrations.fastapi import Committed
from fastdedup.integrations.http import settling
from fastdedup.model import State

from ..fixtures import async_fixture
from ..gated_inbox.shop import WAYS, Place, broken, flush
from ..gated_inbox.times import LEASE
from ..integrations.desk import problem
from ..servers import RedisServer
from .bank import Bank, answering, open_bank, open_postgres, pay_until_done

Waiter = Callable[..., Awaitable[Any]]
BRIEF = {"timeout": 0.1}
PROMPT = 10.0
"""Seconds: far below the 30 that these tests would wait at the gate, also on a busy machine."""


async def at_work(bank: Bank, key: str) -> tuple[asyncio.Event, asyncio.Task[Any]]:
    """Start a request whose handler waits; give the event that lets it go on, and the request's task."""
    go_on, is_there = asyncio.Event(), asyncio.Event()

    async def act(request: Committed[Any]) -> None:
        is_there.set()
        await go_on.wait()

    bank.act = act
    task = asyncio.create_task(bank.pay(key, key))
    await is_there.wait()
    return go_on, task


bank = async_fixture(lambda mortal_postgres, mortal_redis: open_postgres(mortal_postgres, mortal_redis))


# Before COMMIT: rolled back, and the retry is a first run


async def test_an_owner_that_lost_its_lease_is_rolled_back(
    mortal_postgres: Place, mortal_redis: RedisServer, key: str
) -> None:
    """Another owner has the key; it waits at the row until the first one is rolled back, and is then the first."""
    async with open_postgres(mortal_postgres, mortal_redis, gate={"lease": LEASE}) as bank:
        _, first = await at_work(bank, key)
        flush(mortal_redis)
        bank.act = answering(None)
        second = asyncio.create_task(bank.pay(key, key))
        problem(await first, "claim-lost", 409)
        assert (await second).json() == {"paid": 1, "run": 2}
        assert mortal_postgres.effects(key) == 1


async def test_a_lease_lost_at_the_handlers_end_rolls_back(
    mortal_postgres: Place, mortal_redis: RedisServer, key: str, wait_until: Waiter
) -> None:
    """Its loss is known, and the handler could not be stopped any more: it has swallowed its cancellation."""
    async with open_postgres(mortal_postgres, mortal_redis, gate={"lease": LEASE}) as bank:

        async def act(request: Committed[Any]) -> None:
            flush(mortal_redis)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return

        bank.act = act
        problem(await bank.pay(key, key), "claim-lost", 409)
        assert mortal_postgres.effects(key) == 0


# The COMMIT's reply is lost: what the row says


@pytest.mark.parametrize(
    ("arrives", "dies"),
    [(False, False), (False, True), (True, True)],
    ids=["it is cut off", "the server dies before it", "the server dies after it"],
)
async def test_a_commit_whose_reply_is_lost_is_asked_about_by_the_retry(
    arrives: bool, dies: bool, mortal_postgres: Place, bank: Bank, key: str
) -> None:
    server, proxy = mortal_postgres.server, mortal_postgres.proxy
    fail = proxy.lose if arrives else proxy.cut
    fail(server.kill) if dies else fail()
    try:
        problem(await bank.pay(key, key), "commit-unknown", 503)
        if dies:
            problem(await bank.pay(key, key), "database-unavailable", 503)
    finally:
        if dies:
            server.start()
    assert mortal_postgres.effects(key) == arrives
    runs = 1 if arrives else 2
    answer = await bank.pay(key, key)
    assert (answer.status_code, answer.json()) == (201, {"paid": 1, "run": runs})
    assert (bank.runs, mortal_postgres.effects(key)) == (runs, 1)


async def test_a_client_that_leaves_at_commit_leaves_no_half(
    mortal_postgres: Place, bank: Bank, key: str, wait_until: Waiter
) -> None:
    """The request is cancelled while its COMMIT runs: that goes on, and the retry gets the row's response."""
    at_commit = asyncio.Event()
    loop = asyncio.get_running_loop()
    gone = threading.Event()

    def leave() -> None:
        loop.call_soon_threadsafe(at_commit.set)
        gone.wait(5.0)

    mortal_postgres.proxy.hold(leave)
    task = asyncio.create_task(bank.pay(key, key))
    await at_commit.wait()
    task.cancel()
    await asyncio.sleep(0)
    gone.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    again = await pay_until_done(bank, key, wait_until)
    assert (again.status_code, again.json()) == (201, {"paid": 1, "run": 1})
    assert (bank.runs, mortal_postgres.effects(key)) == (1, 1)


# Redis is down, forgets, fails over: the row decides


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_without_redis_the_row_decides(
    how: str, mortal_postgres: Place, mortal_redis: RedisServer, key: str, wait_until: Waiter
) -> None:
    async with open_postgres(mortal_postgres, mortal_redis, wait=30.0, gate=BRIEF) as bank:
        with broken(mortal_redis, how):
            began = time.monotonic()
            first, again = await bank.pay(key, key), await bank.pay(key, key)
            other = await bank.pay(key, key, amount=2)
            assert time.monotonic() - began < PROMPT
        assert (first.status_code, again.content) == (201, first.content)
        assert again.headers["idempotency-replayed"] == "true"
        assert not {"idempotency-replayed", "idempotency-stored"} & first.headers.keys()
        problem(other, "key-reused", 422)
        assert [event.inbox for event in bank.bypasses] == ["bank"] * 3
        assert (bank.runs, mortal_postgres.effects(key)) == (1, 1)

        async def is_mended() -> bool:
            assert (await bank.pay(key, key)).content == first.content
            with suppress(UnavailableError):
                return await bank.state(key) is State.SUCCEEDED
            return False

        await wait_until(is_mended, description="the row mends the gate")


async def test_without_redis_duplicates_wait_at_the_row(
    mortal_postgres: Place, mortal_redis: RedisServer, key: str, wait_until: Waiter
) -> None:
    async with open_postgres(mortal_postgres, mortal_redis, gate=BRIEF) as bank:
        with broken(mortal_redis, "killed"):
            go_on, first = await at_work(bank, key)
            second = asyncio.create_task(bank.pay(key, key))
            await wait_until(mortal_postgres.waiting, description="the second waits for the first's row")
            go_on.set()
            assert (await first).content == (await second).content
        assert (bank.runs, mortal_postgres.effects(key)) == (1, 1)


async def test_without_redis_a_duplicate_waits_as_long_as_the_database_lets_it(
    mortal_postgres: Place, mortal_redis: RedisServer, key: str
) -> None:
    """If the database limits the time of a statement, a duplicate that waits at the row is asked to come again."""
    is_limited = False
    async with WAYS["sqlalchemy"](mortal_postgres) as begin:

        @asynccontextmanager
        async def limited() -> AsyncIterator[Any]:
            async with begin() as session:
                if is_limited:
                    await session.execute(text("SET LOCAL statement_timeout = '20ms'"))
                yield session

        async with open_bank(mortal_redis.url, limited, gate=BRIEF) as bank:
            with broken(mortal_redis, "killed"):
                go_on, first = await at_work(bank, key)
                is_limited = True
                second = await bank.pay(key, key)
                problem(second, "database-unavailable", 503)
                assert second.headers["retry-after"] == "1"
                is_limited = False
                go_on.set()
                assert (await bank.pay(key, key)).content == (await first).content
            assert (bank.runs, mortal_postgres.effects(key)) == (1, 1)


async def test_redis_dies_under_the_work(
    bank: Bank, mortal_postgres: Place, mortal_redis: RedisServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate cannot learn of the response; the retry gets it from the row."""
    monkeypatch.setattr(settling, "HOLD", 0.1)

    async def kill_redis(request: Committed[Any]) -> None:
        mortal_redis.kill()

    bank.act = kill_redis
    try:
        first = await bank.pay(key, key)
    finally:
        mortal_redis.start()
    assert (first.status_code, first.json()) == (201, {"paid": 1, "run": 1})
    assert "idempotency-stored" not in first.headers  # it is stored, in the row
    again = await bank.pay(key, key)
    assert (again.status_code, again.content) == (201, first.content)
    assert (bank.runs, mortal_postgres.effects(key)) == (1, 1)


async def test_a_lease_that_ends_in_an_outage_does_not_stop_the_work(
    mortal_postgres: Place,
    mortal_redis: RedisServer,
    key: str,
    wait_until: Waiter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The gate is away for longer than the lease: the row decides, so the response is committed and sent."""
    monkeypatch.setattr(settling, "HOLD", 0.1)
    async with open_postgres(mortal_postgres, mortal_redis, gate={"lease": LEASE, **BRIEF}) as bank:
        got: list[Committed[Any]] = []

        async def act(request: Committed[Any]) -> None:
            got.append(request)
            mortal_redis.kill()
            assert request.claim is not None
            claim = request.claim
            await wait_until(lambda: claim.lost, description="the lease is lost")

        bank.act = act
        try:
            first = await bank.pay(key, key)
        finally:
            mortal_redis.start()
        assert (first.status_code, mortal_postgres.effects(key)) == (201, 1)
        again = await pay_until_done(bank, key, wait_until)
        assert (again.content, bank.runs) == (first.content, 1)


async def test_a_gate_that_answers_alone_is_no_bypass(
    mortal_postgres: Place, mortal_redis: RedisServer, key: str, wait_until: Waiter
) -> None:
    """LocalLRU answers in the outage: the duplicate does not reach the database, and Redis learns of it later."""
    policy = {"on_unavailable": LocalLRU()}
    async with open_postgres(mortal_postgres, mortal_redis, gate=policy) as bank:
        with broken(mortal_redis, "killed"):
            first, again = await bank.pay(key, key), await bank.pay(key, key)
            assert again.content == first.content
            assert not [event for event in bank.events if isinstance(event, GateBypassed)]
        await wait_until(
            lambda: [event for event in bank.events if isinstance(event, Replayed)],
            description="Redis has learnt of it",
        )
        assert (bank.runs, mortal_postgres.effects(key)) == (1, 1)


async def test_a_record_that_cannot_be_read_is_a_bypass(
    bank: Bank, mortal_redis: RedisServer, key: str
) -> None:
    first = await bank.pay(key, key)
    with mortal_redis.client() as client:
        names = client.keys(f"{bank.gate.settings.namespace}:http*")
        assert names
        for name in names:
            client.set(name, b"foreign", px=60_000)
    assert (await bank.pay(key, key)).content == first.content
    assert len(bank.bypasses) == 1


# The database is down


@pytest.mark.parametrize("dies", [True, False], ids=["it dies", "a serialization failure, or a deadlock"])
async def test_a_transaction_that_the_database_ends_is_503(
    mortal_postgres: Place, bank: Bank, key: str, dies: bool
) -> None:
    """The retry is a first run."""
    server = mortal_postgres.server

    async def act(request: Committed[Any]) -> None:
        if bank.runs == 1:
            if dies:
                server.kill()
            statement = "SELECT 1" if dies else "DO $$BEGIN RAISE SQLSTATE '40001'; END$$"
            await request.session.execute(text(statement))

    bank.act = act
    try:
        answer = await bank.pay(key, key)
        problem(answer, "database-unavailable", 503)
        assert answer.headers["retry-after"] == "1"
        assert await bank.state(key) is State.RELEASED
    finally:
        if dies:
            server.start()
    again = await bank.pay(key, key)
    assert (again.status_code, again.json()) == (201, {"paid": 1, "run": 2})
    assert mortal_postgres.effects(key) == 1
