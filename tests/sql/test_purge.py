"""`purge` deletes what is older than `keep`, in batches, by one process at a time; `stats` tells what is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fastdedup import ConfigError, Dedup
from fastdedup.sql import RetryTransaction
from fastdedup.sync import Dedup as SyncDedup

from ..waiting import wait_until
from .conftest import Opener
from .places import Place
from .ways import Party

Of = Callable[[str], Opener]
HOUR = 3600.0
OLDER = {
    "postgresql": "at - make_interval(secs => {})",
    "mysql": "at - INTERVAL {} SECOND",
    "sqlite": "at - {} * 1000",
}
ON_SERVERS = ["asyncpg", "aiomysql"]


def inbox_of(party: Party, table: str, **options: Any) -> Any:
    begin = party.beginning
    return party.inbox(f"of-{table}", keep=HOUR, table=table, begin=begin, **options)


async def fill(party: Party, table: str, rows: dict[float, int], schema: str | None = None) -> None:
    """Fill a new table: for each age in seconds so many rows, whose keys are the age and a number."""
    place = party.place
    place.create(table, schema)
    inbox = party.inbox(f"of-{table}", keep=HOUR, table=table, schema=schema)
    name = table if schema is None else f"{schema}.{table}"
    younger = 0.0
    for age, number in sorted(
        rows.items(), reverse=True
    ):  # the oldest first: what is there ages with the next ones
        if younger:
            place.sql(f"UPDATE {name} SET at = {OLDER[place.kind].format(younger - age)}")
        async with party.transaction():
            keys = [f"{age} {each}" for each in range(number)]
            await party.call(inbox.receive_many, party.raw, keys)
        younger = age
    place.sql(f"UPDATE {name} SET at = {OLDER[place.kind].format(younger)}")


def left(place: Place, table: str) -> int:
    return int(place.sql(f"SELECT count(*) FROM {table}")[0][0])


@pytest.mark.parametrize("name", [*ON_SERVERS, "aiosqlite", "psycopg", "session pymysql", "django sqlite"])
async def test_a_purge_deletes_in_batches_what_is_older_than_keep(party: Party) -> None:
    table = party.place.fresh_table()
    await fill(party, table, {HOUR * 48: 20, HOUR + 30: 5, HOUR - 30: 4, 0: 3})
    inbox = inbox_of(party, table)
    batches: list[int] = []
    assert await party.call(inbox.purge, batch=10, on_batch=batches.append) == 25
    assert (batches, left(party.place, table)) == ([10, 10, 5], 7)
    async with party.transaction():
        assert (await party.receive(inbox, f"{HOUR + 30} 0")).first
        assert not (await party.receive(inbox, f"{HOUR - 30} 0")).first
    assert await party.call(inbox.purge) == 0


async def test_a_purge_that_may_only_read_is_told(of: Of) -> None:
    async with of("psycopg")() as party:
        table = party.place.fresh_table()
        await fill(party, table, {HOUR + 30: 1})
        async with party.transaction():
            await party.sql("SET default_transaction_read_only = on")
        with pytest.raises(RetryTransaction, match="give it a connection to the primary"):
            await party.call(inbox_of(party, table).purge)
        assert left(party.place, table) == 1


@pytest.mark.parametrize("name", ["aiomysql", "pymysql"])
async def test_a_sessions_time_zone_changes_no_age(of: Of, name: str) -> None:
    async with of(name)(init_command="SET time_zone = '-11:00'") as party:
        table = party.place.fresh_table()
        await fill(party, table, {HOUR + 30: 2, HOUR - 30: 3})
        assert await party.call(inbox_of(party, table).purge) == 2


@pytest.mark.parametrize("name", ["asyncpg", "pymysql"])
async def test_a_stopped_purge_goes_on_where_it_was(party: Party) -> None:
    table = party.place.fresh_table()
    await fill(party, table, {HOUR * 2: 7})
    inbox = inbox_of(party, table)

    def stop(rows: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await party.call(inbox.purge, batch=3, on_batch=stop)
    assert left(party.place, table) == 4  # what it told of is committed
    assert await party.call(inbox.purge, batch=3) == 4


# What makes the delete of a purge wait. PostgreSQL's passes locked rows over.
HELD = {"postgresql": "LOCK TABLE {} IN EXCLUSIVE MODE", "mysql": "SELECT id FROM {} FOR UPDATE"}


@pytest.mark.parametrize("name", ON_SERVERS)
@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["one table", "tables of different schemas"])
async def test_the_database_lets_one_purge_of_a_table_at_a_time(
    of: Of, name: str, is_elsewhere: bool
) -> None:
    async with of(name)() as holder, of(name)() as ours, of(name)() as other:
        place, table = ours.place, ours.place.fresh_table()
        schema = f"other_{table}" if is_elsewhere else None
        await fill(ours, table, {HOUR * 2: 5})
        if schema is not None:
            if place.kind == "mysql":
                place.as_admin(f"GRANT ALL ON {schema}.* TO fastdedup@localhost")
            place.sql(f"CREATE SCHEMA {schema}")
            await fill(other, table, {HOUR * 2: 4}, schema)
        await holder.start()
        await holder.sql(HELD[place.kind].format(table))
        first = asyncio.create_task(inbox_of(ours, table).purge(batch=5))
        await wait_until(lambda: place.waiting() == 1, description="the first purge waits")
        assert await inbox_of(other, table, schema=schema).purge() == (4 if is_elsewhere else 0)
        await holder.rollback()
        assert await first == 5


@pytest.mark.parametrize(("name", "rows"), [("asyncpg", 3000), ("pymysql", 500), ("aiosqlite", 1000)])
async def test_a_batch_has_the_databases_own_size_by_default(party: Party, rows: int) -> None:
    table, batches = party.place.fresh_table(), list[int]()
    await fill(party, table, {HOUR * 2: rows + 1})
    assert await party.call(inbox_of(party, table).purge, on_batch=batches.append) == rows + 1
    assert batches == [rows, 1]


async def test_a_purge_of_partitions_deletes_no_younger_row(of: Of) -> None:
    """Rows of different partitions have the same ctid."""
    async with of("asyncpg")() as party:
        place, table = party.place, party.place.fresh_table()
        place.sql(
            f"CREATE TABLE {table} (id uuid PRIMARY KEY, at timestamptz, result bytea) PARTITION BY HASH (id)",
            *(
                f"CREATE TABLE {table}_{part} PARTITION OF {table} FOR VALUES WITH (MODULUS 2, REMAINDER {part})"
                for part in range(2)
            ),
        )
        inbox = inbox_of(party, table)
        async with party.transaction():
            await inbox.receive_many(party.raw, [str(number) for number in range(50)])
        place.sql(f"UPDATE {table}_0 SET at = at - interval '2 hours'")
        old = left(place, f"{table}_0")
        assert await inbox.purge(batch=10) == old
        assert (left(place, table), old > 10) == (50 - old, True)
        sizes = place.sql(f"SELECT pg_total_relation_size(relid) FROM pg_partition_tree('{table}')")
        assert (await inbox.stats()).size == sum(size for (size,) in sizes) > 0


async def test_a_purge_that_failed_leaves_no_lock(of: Of, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastdedup.sql.purge.pause_after", lambda ended: 0.0)
    async with of("aiomysql")() as holder, of("aiomysql")() as ours, of("aiomysql")() as other:
        table = ours.place.fresh_table()
        await fill(ours, table, {HOUR * 2: 5})
        await ours.sql("SET SESSION innodb_lock_wait_timeout = 0")
        async with holder.transaction():
            await holder.sql(f"SELECT id FROM {table} FOR UPDATE")
            with pytest.raises(RetryTransaction):
                await inbox_of(ours, table).purge()
        assert await inbox_of(other, table).purge() == 5


async def test_a_purge_passes_rows_over_that_are_in_use(of: Of) -> None:
    async with of("asyncpg")() as party, of("asyncpg")() as holder:
        table = party.place.fresh_table()
        await fill(party, table, {HOUR * 2: 5})
        async with holder.transaction():
            await holder.sql(f"SELECT * FROM {table} LIMIT 2 FOR UPDATE")
            assert await inbox_of(party, table).purge() == 3
        assert await inbox_of(party, table).purge() == 2


async def test_a_lock_of_dedup_lets_one_purge_at_a_time(of: Of) -> None:
    tasks = []
    async with (
        Dedup("memory://", namespace="purges") as dedup,
        of("asyncpg")() as party,
        of("asyncpg")() as other,
    ):
        table = party.place.fresh_table()
        await fill(party, table, {HOUR * 2: 5})

        def also(rows: int) -> None:
            if not tasks:
                tasks.append(asyncio.create_task(inbox_of(other, table).purge(leader=dedup)))

        assert await inbox_of(party, table).purge(leader=dedup, batch=1, on_batch=also) == 5
        assert await tasks[0] == 0
        assert await inbox_of(other, table).purge(leader=dedup) == 0  # the lock is free again: it looked
        await fill(party, f"{table}_b", {HOUR * 2: 5})
        assert await inbox_of(other, f"{table}_b").purge(leader=dedup) == 5


async def test_a_lock_of_the_synchronous_dedup_lets_one_purge_at_a_time(of: Of) -> None:
    async with of("psycopg")() as party, of("psycopg")() as other:
        table = party.place.fresh_table()
        await fill(party, table, {HOUR * 2: 3})
        others: list[int] = []

        def purge() -> int:
            with SyncDedup("memory://", namespace="purges") as dedup:

                def also(rows: int) -> None:
                    others.append(inbox_of(other, table).purge(leader=dedup))

                return int(inbox_of(party, table).purge(leader=dedup, batch=1, on_batch=also))

        assert await party.call(purge) == 3
        assert others == [0, 0, 0]


@pytest.mark.parametrize("name", [*ON_SERVERS, "aiosqlite", "psycopg", "connection pymysql", "django sqlite"])
async def test_stats_tell_rows_bytes_and_ages(party: Party) -> None:
    table = party.place.fresh_table()
    party.place.create(table)
    inbox = inbox_of(party, table)
    empty = await party.call(inbox.stats)
    assert (empty.rows, empty.oldest, empty.ages) == (0, None, ())
    party.place.sql(f"DROP TABLE {table}")
    await fill(party, table, {HOUR * 48.5: 4, HOUR * 0.5: 3})
    found = await party.call(inbox.stats, stretch=HOUR)
    assert (found.rows, found.ages) == (7, ((0.0, 3), (HOUR * 48, 4)))
    assert found.size > 0
    assert HOUR * 48.5 - 1 <= found.oldest < HOUR * 49  # PostgreSQL's rows have the time of the next second


async def test_purge_and_stats_need_to_begin(of: Of) -> None:
    for name in ("asyncpg", "psycopg"):
        party = of(name)()
        for attempt in (party.inbox().purge, party.inbox().stats):
            with pytest.raises(ConfigError, match=r"begin=Session\.begin"):
                await party.call(attempt)
        for batch in (0, 1 << 63):
            with pytest.raises(ConfigError, match="batch must be"):
                await party.call(inbox_of(party, "any").purge, batch=batch)
        with pytest.raises(ConfigError, match="stretch must be"):
            await party.call(inbox_of(party, "any").stats, stretch=0)
