"""The failure table of gate and inbox for synchronous code, over psycopg and PyMySQL.

See `test_failure_table.py`, whose rows stand here where the code is another one.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from threading import current_thread
from typing import Any

import psycopg
import pymysql
import pytest

from fastdedup.model import State
from fastdedup.sql import once
from fastdedup.sync import sql as sync_sql

from ..servers import RedisServer
from .shop import Place, broken, flush, is_unsettled
from .sync_shop import Call, bypasses, held, open_sync_shop
from .times import LEASE

LOST = (psycopg.OperationalError, pymysql.OperationalError, pymysql.InterfaceError)
Waiter = Callable[..., Awaitable[Any]]
BRIEF = {"timeout": 0.1}
PROMPT = 10.0
"""Seconds: far below the 30 that these tests would wait at the gate, also on a busy machine."""


@pytest.fixture(params=["postgres", "mariadb"])
def place(request: pytest.FixtureRequest) -> Place:
    mortal: Place = request.getfixturevalue(f"mortal_{request.param}")
    return mortal


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_without_redis_the_inbox_decides_at_once(
    how: str, place: Place, mortal_redis: RedisServer, key: str
) -> None:
    with open_sync_shop(place, mortal_redis, wait=30.0, gate=BRIEF) as shop:
        shop.act = lambda transaction, key: {"invoice": 7}
        with broken(mortal_redis, how):
            began = time.monotonic()
            assert [shop.handle(key), shop.handle(key)] == [{"invoice": 7}] * 2
            assert time.monotonic() - began < PROMPT
        assert shop.runs == place.effects(key) == 1
        assert [event.inbox for event in bypasses(shop)] == ["shop", "shop"]


def test_the_event_of_a_bypass_comes_from_the_gates_thread(
    mortal_postgres: Place, mortal_redis: RedisServer, key: str
) -> None:
    """As all its events do: a callback is never called by two threads at once."""
    threads: set[str] = set()

    def hear(event: object) -> None:
        threads.add(f"{type(event).__name__} in {current_thread().name}")

    with open_sync_shop(mortal_postgres, mortal_redis, gate={"on_event": hear}) as shop:
        with broken(mortal_redis, "killed"):
            shop.handle(key)
        bypasses(shop)
    assert "GateBypassed in fastdedup-sync" in threads
    assert not {each for each in threads if not each.endswith(" in fastdedup-sync")}


async def test_a_waiter_at_the_gate_goes_on_without_redis(
    mortal_postgres: Place,
    mortal_redis: RedisServer,
    key: str,
    wait_until: Waiter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(once, "LOOK", 0.1)
    monkeypatch.setattr(sync_sql, "MENDING", 0.1)
    with open_sync_shop(mortal_postgres, mortal_redis, wait=30.0) as shop:
        go_on, shop.act = held()
        first = Call(shop.handle, key)
        await wait_until(lambda: shop.runs, description="the first is at work")
        second = Call(shop.elsewhere, key)
        await wait_until(lambda: shop.waiters, description="the second waits")
        with broken(mortal_redis, "killed"):
            await wait_until(mortal_postgres.waiting, description="the second waits for the first's row")
            go_on.set()
            assert [first.result, second.result] == [key, key]
        assert shop.runs == mortal_postgres.effects(key) == 1


async def test_a_lost_reply_of_commit_leaves_the_gate_alone(
    place: Place, mortal_redis: RedisServer, key: str, wait_until: Waiter
) -> None:
    with open_sync_shop(place, mortal_redis, gate={"lease": LEASE}) as shop:
        place.proxy.lose()
        with pytest.raises(LOST) as failed:
            shop.handle(key)
        assert place.effects(key) == 1
        assert is_unsettled(shop.record(key))
        assert await wait_until(lambda: shop.redelivered(key), description="the lease ends") == [key]
        assert shop.runs == place.effects(key) == 1
        assert shop.record(key).result == key  # type: ignore[union-attr]
        del failed  # until here it was kept, and with it the claim


@pytest.mark.parametrize("how", ["before", "after"])
async def test_a_server_killed_at_commit_leaves_the_gate_alone(
    how: str, place: Place, mortal_redis: RedisServer, key: str, wait_until: Waiter
) -> None:
    with open_sync_shop(place, mortal_redis, gate={"lease": LEASE}) as shop:
        (place.proxy.cut if how == "before" else place.proxy.lose)(place.server.kill)
        with pytest.raises(LOST):
            shop.handle(key)
        assert is_unsettled(shop.record(key))
        place.server.start()
        assert await wait_until(lambda: shop.redelivered(key), description="the lease ends") == [key]
        assert (shop.runs, place.effects(key)) == (2 if how == "before" else 1, 1)


async def test_two_owners_do_the_work_once(
    place: Place, mortal_redis: RedisServer, key: str, wait_until: Waiter
) -> None:
    """Redis forgets the first owner's claim: the second waits at the first's row, and answers by it."""
    with open_sync_shop(place, mortal_redis) as shop:
        go_on, shop.act = held()
        first = Call(shop.handle, key)
        await wait_until(lambda: shop.runs, description="the first is at work")
        flush(mortal_redis)
        second = Call(shop.handle, key)
        await wait_until(place.waiting, description="the second waits for the first's row")
        go_on.set()
        assert [first.result, second.result] == [key, key]
        assert shop.runs == place.effects(key) == 1
        assert shop.record(key).result == key  # type: ignore[union-attr]


def test_the_row_answers_where_redis_forgot(place: Place, mortal_redis: RedisServer, key: str) -> None:
    with open_sync_shop(place, mortal_redis) as shop:
        shop.handle(key)
        flush(mortal_redis)
        assert shop.handle(key) == key
        assert shop.runs == 1
        assert shop.record(key).result == key  # type: ignore[union-attr]  # mended


@pytest.mark.parametrize("when", ["before", "under the work"])
def test_without_a_database_the_gate_is_free_again(
    when: str, place: Place, mortal_redis: RedisServer, key: str
) -> None:
    with open_sync_shop(place, mortal_redis) as shop:

        def act(transaction: Any, key: str) -> str:
            if shop.runs == 1 and when != "before":
                place.server.kill()
                transaction.cursor().execute("SELECT 1")
            return key

        shop.act = act
        if when == "before":
            place.server.kill()
        try:
            with pytest.raises(LOST):
                shop.handle(key)
            assert shop.record(key).state is State.RELEASED  # type: ignore[union-attr]
        finally:
            place.server.start()
        assert shop.handle(key) == key
        assert place.effects(key) == 1


@pytest.mark.parametrize("where", ["body", "pause"])
def test_an_interrupted_call_frees_the_gate(
    where: str,
    mortal_postgres: Place,
    mortal_redis: RedisServer,
    key: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also in the pause after a COMMIT that the database has refused: nothing of it has happened."""
    with open_sync_shop(mortal_postgres, mortal_redis) as shop:

        def interrupt(*args: Any) -> None:
            raise KeyboardInterrupt

        if where == "pause":
            mortal_postgres.sql(*REFUSE_COMMITS)
            monkeypatch.setattr("time.sleep", interrupt)
        else:
            shop.act = interrupt
        try:
            with pytest.raises(KeyboardInterrupt):
                shop.handle(key)
        finally:
            mortal_postgres.sql("DROP TRIGGER IF EXISTS refuse ON work")
        assert shop.record(key).state is State.RELEASED  # type: ignore[union-attr]
        shop.act = lambda transaction, key: key
        assert shop.handle(key) == key
        assert mortal_postgres.effects(key) == 1


REFUSE_COMMITS = (
    """CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '40001'; END $$""",
    """CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON work DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION refuse()""",
)
"""Have PostgreSQL end each transaction with work by 40001 at its COMMIT."""
