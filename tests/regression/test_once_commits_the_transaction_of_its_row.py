"""`Inbox.once` committed work without its row if the function had ended the row's transaction by itself.

A function that catches an error calls `session.rollback()` and goes on: what it does then is in another transaction,
so the next delivery did it again. After a `session.commit()` the rest of the work was no longer atomic with the row.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from django.db.transaction import atomic
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from fastdedup import Dedup, UsageError
from fastdedup.messages import Action
from fastdedup.sql import Inbox, RetryTransaction

from ..messages.test_rules import Billing, Shop
from ..sql import conftest as sql
from ..sql.places import Place
from ..sql.ways import WAYS, WEEK, Party, async_engine_of

key, of = sql.key, sql.of
postgres_place, mariadb_place, sqlite_place = sql.postgres_place, sql.mariadb_place, sql.sqlite_place
# asyncpg's and Django's blocks refuse both calls themselves.
ENDABLE = [name for name in WAYS if name != "asyncpg" and not name.startswith("django")]
SERVERS = [name for name in ENDABLE if WAYS[name].kind != "sqlite"]


@pytest.fixture(params=ENDABLE)
def party_of(request: pytest.FixtureRequest) -> Callable[[], Party]:
    return sql.opener(request, request.param)


@pytest.fixture(params=SERVERS)
def server_party_of(request: pytest.FixtureRequest) -> Callable[[], Party]:
    return sql.opener(request, request.param)


def done(place: Place, key: str) -> list[str]:
    """The notes of the key's work that were committed."""
    return sorted(row[0] for row in place.sql(f"SELECT note FROM work WHERE note LIKE '%{key}'"))


class Worker:
    """A function under `once` that does work, ends the transaction as it is told to, and does more."""

    def __init__(
        self, party: Party, end: str, result: Any, between: Callable[[], None] = lambda: None
    ) -> None:
        self.party, self.end, self.result, self.between = party, end, result, between
        once = party.inbox(begin=party.beginning).once(lambda transaction, key: key)
        self._once = once(party.own(self._work))

    async def handle(self, key: str) -> Any:
        return await self.party.call(self._once, key)

    async def _work(self, transaction: Any, key: str) -> Any:
        await self.party.work(f"first {key}")
        if self.end:
            await getattr(self.party, self.end)()
            self.between()
            await self.party.start()
        await self.party.work(f"second {key}")
        return self.result


@pytest.mark.parametrize("end", ["rollback", "commit"])
@pytest.mark.parametrize("result", [None, "paid"])
async def test_work_after_an_end_of_its_own_is_not_committed(
    party_of: Callable[[], Party], key: str, result: Any, end: str
) -> None:
    """After a rollback the work is done anew; after a commit it counts as done, without a result."""
    rolls_back = end == "rollback"
    async with party_of() as party:
        worker = Worker(party, end, result)
        with pytest.raises(UsageError, match="rolled back or committed before the work was done"):
            await worker.handle(key)
        assert done(party.place, key) == ([] if rolls_back else [f"first {key}"])
        worker.end = ""
        assert await worker.handle(key) == (result if rolls_back else None)
        assert done(party.place, key) == [f"first {key}", *([f"second {key}"] if rolls_back else [])]


@pytest.mark.parametrize("result", [None, "paid"])
async def test_a_row_of_a_twin_is_not_taken_for_its_own(
    server_party_of: Callable[[], Party], key: str, result: Any
) -> None:
    """The twin commits between the function's rollback and the rest of its work."""
    async with server_party_of() as party:

        def twin() -> None:
            row = party.inbox().id_of(key).hex()
            value = f"UNHEX('{row}')" if party.place.kind == "mysql" else f"'{row}'"
            party.place.sql(f"INSERT INTO fastdedup_inbox (id, at) VALUES ({value}, now())")

        worker = Worker(party, "rollback", result, twin)
        with pytest.raises(UsageError, match="rolled back or committed before the work was done"):
            await worker.handle(key)
        assert done(party.place, key) == []


@pytest.mark.parametrize(
    "name", ["async session psycopg", "async session aiomysql", "async session aiosqlite"]
)
async def test_work_of_a_nested_transaction_is_done(of: Callable[[str], Any], key: str, name: str) -> None:
    """The row is a savepoint's, and an inner `once` has an own one."""
    async with of(name)() as party:

        @asynccontextmanager
        async def begin() -> AsyncIterator[Any]:
            async with party.raw.begin_nested():
                yield party.raw

        inbox = party.inbox(begin=begin)

        @inbox.once(lambda transaction, key: f"inner {key}")
        async def inner(transaction: Any, key: str) -> None:
            await party.work(f"inner {key}")

        @inbox.once(lambda transaction, key: key)
        async def outer(transaction: Any, key: str) -> str:
            await inner(key)
            return "done"

        async with party.transaction():
            assert await outer(key) == "done"
        assert done(party.place, key) == [f"inner {key}"]


@pytest.mark.parametrize("name", ["session pymysql", "django sqlite"])
async def test_an_inner_function_whose_deadlock_ends_all_lets_the_outer_one_run_again(
    of: Callable[[str], Any], key: str, name: str
) -> None:
    """MariaDB rolls all back. A second run of the inner function alone would lose the outer one's work."""
    async with of(name)() as party:

        @contextmanager
        def nested() -> Iterator[Any]:
            with atomic(using=party.raw.alias) if name == "django sqlite" else party.raw.begin_nested():
                yield party.raw

        runs = []

        @party.inbox(begin=nested).once(lambda transaction, key: f"inner {key}")
        @party.own
        async def inner(transaction: Any, key: str) -> None:
            runs.append("inner")
            if len(runs) == 2:  # as the database does
                await party.sql("ROLLBACK")
                raise RetryTransaction("a deadlock")
            await party.work(f"inner {key}")

        @party.inbox(begin=party.beginning).once(lambda transaction, key: key)
        @party.own
        async def outer(transaction: Any, key: str) -> None:
            runs.append("outer")
            await party.work(f"outer {key}")
            inner(key)

        await party.call(outer, key)
        assert runs == ["outer", "inner"] * 2
        assert done(party.place, key) == [f"inner {key}", f"outer {key}"]


async def test_an_inner_async_function_whose_deadlock_ends_all_lets_the_outer_one_run_again(
    of: Callable[[str], Any], key: str
) -> None:
    async with of("async session aiomysql")() as party:

        @asynccontextmanager
        async def nested() -> AsyncIterator[Any]:
            async with party.raw.begin_nested():
                yield party.raw

        runs = []

        @party.inbox(begin=nested).once(lambda transaction, key: f"inner {key}")
        async def inner(transaction: Any, key: str) -> None:
            runs.append("inner")
            if len(runs) == 2:  # as the database does
                await party.sql("ROLLBACK")
                raise RetryTransaction("a deadlock")
            await party.work(f"inner {key}")

        @party.inbox(begin=party.begin).once(lambda transaction, key: key)
        async def outer(transaction: Any, key: str) -> None:
            runs.append("outer")
            await party.work(f"outer {key}")
            await inner(key)

        await outer(key)
        assert runs == ["outer", "inner"] * 2
        assert done(party.place, key) == [f"inner {key}", f"outer {key}"]


async def test_a_caught_error_behind_a_gate_is_told_truly(postgres_place: Place, key: str) -> None:
    """As the first call of a function this was told to be a `begin=` that does not commit."""
    engine = async_engine_of(postgres_place.database.urls["asyncpg"])
    postgres_place.sql("CREATE TABLE IF NOT EXISTS once_row (note text UNIQUE)")

    @asynccontextmanager
    async def get_session() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(engine) as session:
            yield session
            await session.commit()

    async with Dedup("memory://", namespace="shop") as gate:
        inbox = Inbox("tests", keep=WEEK, begin=get_session)

        @inbox.once(lambda session, key: key, gate=gate)
        async def work(session: AsyncSession, key: str) -> None:
            with suppress(IntegrityError):
                await session.execute(text("INSERT INTO once_row VALUES ('x'), ('x')"))
            await session.rollback()
            await session.execute(text("INSERT INTO work VALUES (:key)"), {"key": key})

        for _ in range(2):
            with pytest.raises(UsageError, match="rolled back or committed before the work was done"):
                await work(key)
        assert done(postgres_place, key) == []


@pytest.mark.parametrize("result", [None, "paid"])
async def test_a_row_of_a_partition_is_recognized(of: Callable[[str], Any], key: str, result: Any) -> None:
    async with of("asyncpg")() as party:
        table = party.place.fresh_table()
        party.place.create(f"{table}_of")
        party.place.sql(
            f"CREATE TABLE {table} (LIKE {table}_of INCLUDING ALL) PARTITION BY HASH (id)",
            f"CREATE TABLE {table}_0 PARTITION OF {table} FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
        )

        @party.inbox(table=table, begin=party.begin).once(lambda transaction, key: key)
        async def work(transaction: Any, key: str) -> Any:
            await party.work(key)
            return result

        assert [await work(key), await work(key)] == [result] * 2
        assert done(party.place, key) == [key]


@pytest.mark.parametrize("gated", [True, False])
async def test_a_message_whose_handler_commits_is_a_dead_letter(
    tmp_path: Path, key: str, gated: bool
) -> None:
    """Its next delivery was a duplicate, and acknowledged, though the rest of the work was not done."""
    shop = Shop(tmp_path / "shop.db")

    class Committing(Billing):
        async def handler(self, *given: Any) -> None:
            await super().handler(*given)
            await given[0].commit()
            await given[0].execute("BEGIN")
            await given[0].execute("INSERT INTO work VALUES ('more')")

    async with Dedup("memory://", namespace="shop") as gate:
        consumer = Committing(gate if gated else None, inbox=shop.inbox)
        assert (await consumer.get({"id": key})).action is Action.DEAD_LETTER
    assert "rolled back or committed before the work was done" in str(consumer.dead[0].error)
    assert shop.effects() == 1
