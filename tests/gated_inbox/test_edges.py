"""What gate and inbox do at the edges: errors of the work, other inboxes, a gate that is unusual or misused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import asyncpg
import pymysql
import pytest
from sqlalchemy import JSON, create_engine
from sqlalchemy.exc import StatementError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from fastdedup import ConfigError, FailedError, InvalidKeyError, ResultTooLargeError, UsageError
from fastdedup.model import State
from fastdedup.sql import Inbox, RetryTransaction
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.sync.sql import Inbox as SyncInbox

from ..codecs import reads_nothing
from ..faces import told
from ..fixtures import async_fixture
from ..servers import RedisServer
from ..sql.ways import async_engine_of
from .shop import WAYS, Place, Shop, answer, flush, open_shop, scripts
from .sync_shop import SYNC_WAYS, SyncShop, open_either, open_sync_shop
from .times import WEEK

# The work fails


class Base(DeclarativeBase):
    """The tables of SQLAlchemy."""


class Note(Base):
    """A row of the effects."""

    __tablename__ = "work"
    note: Mapped[Any] = mapped_column(JSON, primary_key=True)


shop = async_fixture(lambda mortal_postgres, mortal_redis: open_shop(mortal_postgres, mortal_redis))


@pytest.mark.parametrize("way", [*WAYS, *SYNC_WAYS])
async def test_work_that_hides_a_failed_statement_is_not_done(
    way: str, place: Place, mortal_redis: RedisServer, key: str
) -> None:
    """PostgreSQL answers the COMMIT of such a transaction with ROLLBACK, which drivers take for a success.

    MariaDB rolls the whole transaction back if two of them wait for each other.
    """
    async with open_either(place, mortal_redis, way) as shop:

        async def hide(transaction: Any, key: str) -> None:
            with suppress(Exception):
                await shop.ask(transaction, "ROLLBACK" if way == "pymysql" else "SELECT nothing")

        shop.act = hide
        with pytest.raises(UsageError, match=r"a statement before has failed|was rolled back"):
            await shop.handle(key)
        assert shop.place.effects(key) == 0
        shop.act = answer(None)
        assert await shop.handle(key) is None
        assert shop.place.effects(key) == 1


# A `begin` that does not commit


@pytest.mark.parametrize("way", ["sqlalchemy", "pymysql"])
async def test_a_begin_that_does_not_commit_is_told(
    way: str, place: Place, mortal_redis: RedisServer, key: str
) -> None:
    if way == "pymysql":
        begin: Any = partial(pymysql.connect, **place.database.pymysql)
    else:
        begin = async_sessionmaker(async_engine_of(place.database.urls["asyncpg"]))
    async with open_either(place, mortal_redis, way, begin=begin) as shop:
        with pytest.raises(ConfigError, match="begin= does not commit"):
            await shop.handle(key)
        assert (await shop.record(key)).state is State.RELEASED  # type: ignore[union-attr]
        assert shop.place.effects(key) == 0


async def test_what_was_committed_stands_where_the_look_fails(shop: Shop, key: str) -> None:
    begins = 0
    begin = shop.begin

    @asynccontextmanager
    async def once_only() -> AsyncIterator[Any]:
        nonlocal begins
        begins += 1
        if begins == 2:
            raise ConnectionError("no connection for a look")
        async with begin() as transaction:
            yield transaction

    once = shop.inbox.once(key=lambda transaction, key: key, begin=once_only, gate=shop.gate)
    handle = once(shop.work)
    assert [await handle(key), await handle(key)] == [None, None]
    assert (begins, shop.place.effects(key)) == (2, 1)
    await handle(f"{key}, another")
    await handle(f"{key}, the third")
    assert begins == 5  # it looks again at the next first message, and once it has seen the row no more


# What the gate cannot keep, or read


@pytest.mark.parametrize("way", ["asyncpg", "psycopg"])
async def test_a_result_too_large_for_the_gate_comes_from_the_row(
    way: str, place: Place, mortal_redis: RedisServer, key: str
) -> None:
    async with open_either(place, mortal_redis, way, gate={"max_result": 100}) as shop:
        shop.act = answer("x" * 1000)
        assert [await shop.handle(key) for _ in range(3)] == ["x" * 1000] * 3
        assert shop.runs == shop.place.effects(key) == 1
        assert (await shop.record(key)).state is State.RELEASED  # type: ignore[union-attr]


async def test_the_row_answers_where_the_gates_result_cannot_be_read(
    mortal_postgres: Place, mortal_redis: RedisServer, key: str
) -> None:
    async with open_shop(
        mortal_postgres, mortal_redis, gate={"codec": reads_nothing(ValueError("not mine"))}
    ) as shop:
        shop.act = answer(7)
        assert [await shop.handle(key), await shop.handle(key)] == [7, 7]
        assert shop.runs == 1
        assert "loads() of CodecOf" in (await shop.bypasses())[0].reason


@pytest.mark.parametrize("way", ["asyncpg", "psycopg"])
async def test_a_foreign_value_at_the_gate_holds_no_message_up(
    way: str, place: Place, mortal_redis: RedisServer, key: str
) -> None:
    async with open_either(place, mortal_redis, way) as shop:
        await shop.handle(key)
        with mortal_redis.client() as client:
            (wire,) = client.keys(f"{shop.gate.settings.namespace}:*")
            client.set(wire, "another program's", px=60_000)
        assert await shop.handle(key) is None
        assert shop.runs == 1
        assert "did not write" in (await shop.bypasses())[0].reason


async def test_a_failure_at_the_gate_is_raised(shop: Shop, key: str) -> None:
    """`once` records none; somebody who fails a message by hand stops its redelivery so."""
    await (await shop.gate.claim(shop.gate_key(key))).fail("by hand")
    with pytest.raises(FailedError, match="by hand"):
        await shop.handle(key)
    assert shop.runs == 0


# Which gate, which inbox


async def test_two_inboxes_at_one_gate_each_do_their_work(shop: Shop, key: str) -> None:
    """Of two names, and of one name in two tables."""
    shop.place.sql("CREATE TABLE IF NOT EXISTS other_inbox (LIKE fastdedup_inbox INCLUDING ALL)")
    inboxes = shop.inbox, Inbox("mail", keep=WEEK), Inbox("shop", keep=WEEK, table="other_inbox")
    for inbox in inboxes:
        once = inbox.once(key=lambda transaction, key: key, begin=shop.begin, gate=shop.gate)
        handle = once(shop.work)
        await handle(key)
        await handle(key)
    assert shop.runs == shop.place.effects(key) == 3


async def test_what_a_session_cannot_send_is_an_error_of_the_work(
    mortal_postgres: Place, mortal_redis: RedisServer, key: str
) -> None:
    """SQLAlchemy sends it with the COMMIT at the latest, whose error would leave it unknown what was committed."""
    engine = create_async_engine(mortal_postgres.database.urls["asyncpg"])
    begin = async_sessionmaker(engine).begin
    async with open_shop(mortal_postgres, mortal_redis, begin=begin) as shop:

        async def note(session: Any, key: str) -> None:
            session.add(Note(note=object()))

        shop.act = note
        with pytest.raises(StatementError, match="not JSON serializable"):
            await shop.handle(key)
        assert (await shop.record(key)).state is State.RELEASED  # type: ignore[union-attr]
        assert shop.place.effects(key) == 0
    await engine.dispose()


def test_what_a_blocking_session_cannot_send_is_an_error_of_the_work(
    mortal_postgres: Place, mortal_redis: RedisServer, key: str
) -> None:
    engine = create_engine(mortal_postgres.database.urls["psycopg"])
    inbox = SyncInbox("shop", keep=WEEK)
    with SyncDedup(mortal_redis.url, namespace=key) as gate:

        @inbox.once(key=lambda session, key: key, begin=sessionmaker(engine).begin, gate=gate)
        def work(session: Any, key: str) -> None:
            session.add(Note(note=object()))

        with pytest.raises(TypeError, match="not JSON serializable"):
            work(key)
        record = gate.get(inbox.rules.gate_key(key))
        assert record is not None
        assert record.state is State.RELEASED
    engine.dispose()


async def test_a_result_too_large_frees_the_gate(shop: Shop, key: str) -> None:
    shop.act = answer("x" * 300_000)
    with pytest.raises(ResultTooLargeError):
        await shop.handle(key)
    assert (await shop.record(key)).state is State.RELEASED  # type: ignore[union-attr]
    assert shop.place.effects(key) == 0


async def test_a_key_of_another_type_reaches_no_gate(shop: Shop, mortal_redis: RedisServer) -> None:
    before = scripts(mortal_redis)
    with pytest.raises(InvalidKeyError, match="a key must be text"):
        await shop.handle(7)
    assert (shop.runs, scripts(mortal_redis)) == (0, before)


async def test_the_longest_key_passes_the_gate(shop: Shop, key: str) -> None:
    longest = key.ljust(1024, "x")
    with pytest.raises(asyncpg.StringDataRightTruncationError):  # of the effect's own column
        await shop.handle(longest)
    assert (await shop.record(longest)).state is State.RELEASED  # type: ignore[union-attr]


async def test_a_scoped_gate_serves_an_inbox(shop: Shop, mortal_redis: RedisServer, key: str) -> None:
    scoped = shop.gate.scoped("orders", lease=5.0)
    handle = shop.inbox.once(key=lambda transaction, key: key, begin=shop.begin, gate=scoped)(shop.work)
    await handle(key)
    flush(mortal_redis)
    await handle(key)
    assert shop.runs == 1
    assert (await scoped.get(shop.gate_key(key))).state is State.SUCCEEDED  # type: ignore[union-attr]
    assert await shop.record(key) is None


@pytest.mark.parametrize("way", ["asyncpg", "psycopg"])
async def test_a_gate_that_is_not_open_is_told(
    way: str, place: Place, mortal_redis: RedisServer, key: str
) -> None:
    async with open_either(place, mortal_redis, way) as shop:
        await told(shop.gate.close() if isinstance(shop, SyncShop) else shop.gate.aclose())
        with pytest.raises(UsageError, match="this Dedup is closed"):
            await shop.handle(key)
        assert shop.runs == 0


async def test_a_gate_of_the_other_kind_is_refused(mortal_postgres: Place, mortal_redis: RedisServer) -> None:
    async with open_sync_shop(mortal_postgres, mortal_redis) as shop:
        plain: Any = shop.gate
        with pytest.raises(ConfigError, match=r"must be a fastdedup\.Dedup, got fastdedup\.sync\."):
            Inbox("shop", keep=WEEK).once(key=str, begin=shop.begin, gate=plain)
        with pytest.raises(ConfigError, match=r"must be a fastdedup\.sync\.Dedup, got fastdedup\.gateway"):
            SyncInbox("shop", keep=WEEK).once(key=str, begin=shop.begin, gate=plain.bound.latest)


# Retries


@pytest.mark.parametrize("where", ["body", "commit"])
async def test_a_serialization_failure_runs_the_transaction_again(
    where: str, mortal_postgres: Place, mortal_redis: RedisServer, key: str
) -> None:
    """So often as `attempts` says; then the gate is free."""
    refusal = DEFER_REFUSAL if where == "commit" else REFUSAL
    async with open_shop(mortal_postgres, mortal_redis, attempts=3) as shop:
        refused = 3

        async def refuse(transaction: Any, key: str) -> str:
            if shop.runs <= refused:
                await transaction.execute(refusal)
            return key

        shop.act = refuse
        with pytest.raises(RetryTransaction, match="ended 3 transactions"):
            await shop.handle(key)
        assert (shop.runs, shop.place.effects(key)) == (3, 0)
        assert (await shop.record(key)).state is State.RELEASED  # type: ignore[union-attr]
        refused = 5
        assert await shop.handle(key) == key
        assert (shop.runs, shop.place.effects(key)) == (6, 1)
        assert (await shop.record(key)).result == key  # type: ignore[union-attr]


REFUSAL = "DO $$ BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '40001'; END $$"
DEFER_REFUSAL = """
    CREATE TEMPORARY TABLE refusals (n int) ON COMMIT DROP;
    CREATE FUNCTION pg_temp.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '40001'; END $$;
    CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON refusals DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION pg_temp.refuse();
    INSERT INTO refusals VALUES (1)
"""
"""Have PostgreSQL end this transaction by 40001 at its COMMIT."""
