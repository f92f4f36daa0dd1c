"""`fingerprint=` had no effect wherever the inbox decided: another message under a used id was acked as a duplicate.

That is a consumer with an inbox alone, one whose gate has forgotten the message, and one whose Redis is away.
`receive` and `once` had no such parameter.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fastdedup import ConfigError, FailedError, MismatchError, Outcome, fingerprint
from fastdedup.messages import Action, Reason
from fastdedup.sql import Inbox
from fastdedup.sql.dialects import TableName, dialect_of
from fastdedup.sync.sql import Inbox as SyncInbox
from fastdedup.testing import inbox_database

from ..faces import each_face, gate_of, once_of
from ..inbox_file import transaction, transaction_now
from ..messages.test_faststream import Shop as FastStreamShop
from ..messages.test_redis_streams import Work, shop_of
from ..messages.test_rules import Billing
from ..messages.test_rules import Shop as Database
from ..servers import RedisServer
from ..sql import conftest as sql
from ..sql.ways import WEEK, Party
from ..waiting import wait_until

key, way, database = sql.key, sql.way, sql.database
postgres_place, mariadb_place, sqlite_place = sql.postgres_place, sql.mariadb_place, sql.sqlite_place
Opener = Callable[..., Party]
GATES = pytest.mark.parametrize("gate", ["none", "forgot", "away"])


async def test_a_received_key_with_another_fingerprint_is_a_mismatch(way: Opener, key: str) -> None:
    async with way() as party:
        inbox = party.inbox(f"amounts {id(party)}".replace(" ", "-"))
        async with party.transaction():
            receipt = await party.receive(inbox, key, fingerprint=5)
            assert receipt.first
            await party.call(receipt.complete, "booked 5")
        async with party.transaction():
            for same in (5, fingerprint(5), None):
                assert (await party.receive(inbox, key, fingerprint=same)).result == "booked 5"
            for busy in ("wait", "skip"):
                with pytest.raises(
                    MismatchError, match=f"{key!r} was received before with another fingerprint"
                ):
                    await party.receive(inbox, key, fingerprint=999, busy=busy)
            await party.work(key)  # the transaction goes on
        assert inbox.rules.received[Outcome.MISMATCH] == 2


async def test_a_key_of_many_with_another_fingerprint_is_a_mismatch(way: Opener, key: str) -> None:
    async with way() as party:
        inbox = party.inbox()
        keys = [f"{key} {number}" for number in range(3)]

        async def receive(keys: list[str], fingerprints: Any) -> list[bool]:
            found = await party.call(inbox.receive_many, party.raw, keys, fingerprints=fingerprints)
            return [each.first for each in found]

        async with party.transaction():
            assert await receive([*keys, keys[0]], [5, None, 7, 5]) == [True, True, True, False]
        async with party.transaction():
            for same in ([5, 6, 7], [None, None, None], None):
                assert await receive(keys, same) == [False] * 3
            for wrong in ([keys[0]], [999]), ([keys[1], keys[2]], [6, 999]), ([f"{key} new"] * 2, [5, 999]):
                with pytest.raises(MismatchError):
                    await receive(*wrong)
            with pytest.raises(ConfigError, match="1 fingerprints for 2 keys"):
                await receive(keys[:2], [5])
            assert await receive(keys[:2], (each for each in (5, 6))) == [False] * 2
            for wrong in ("56", 7):
                with pytest.raises(ConfigError, match="fingerprints must be a list with one for each key"):
                    await receive(keys[:2], wrong)


async def test_a_table_without_the_column_serves_all_but_fingerprints(database: Opener, key: str) -> None:
    async with database() as party:
        table = party.place.fresh_table()
        dialect = dialect_of(party.place.kind, TableName(table))
        party.place.run(dialect.ddl(marked=False))
        inbox = party.inbox(table=table)
        async with party.transaction():
            assert (await party.receive(inbox, key)).first
        statement = dialect.add_fingerprint().strip()
        async with party.transaction():
            with pytest.raises(ConfigError) as caught:
                await party.receive(inbox, f"{key} marked", fingerprint=5)
        assert str(caught.value).endswith(
            f"needs a column that the table {table} does not have: run {statement}"
        )
        party.place.sql(statement)
        async with party.transaction():
            assert (await party.receive(inbox, f"{key} marked", fingerprint=5)).first
            assert not (await party.receive(inbox, key, fingerprint=5)).first  # its row has none to compare
            with pytest.raises(MismatchError):
                await party.receive(inbox, f"{key} marked", fingerprint=999)


async def test_a_column_of_another_type_is_told(database: Opener, key: str) -> None:
    async with database() as party:
        table = party.place.fresh_table()
        party.place.run(dialect_of(party.place.kind, TableName(table)).ddl(marked=False))
        party.place.sql(f"ALTER TABLE {table} ADD COLUMN fingerprint INTEGER")
        async with party.transaction():
            with pytest.raises(
                ConfigError, match=f"the table {table} is no inbox: its column fingerprint is int"
            ):
                await party.receive(party.inbox(table=table), key, fingerprint=5)


@asynccontextmanager
async def gate_that(gate: str, redis_url: str, face: str = "asyncio") -> AsyncIterator[Any]:
    """A gate that has let the inbox's first message through, and then has forgotten it, or is away."""
    if gate == "none":
        yield None
        return
    url = redis_url if gate == "forgot" else "unix:///nowhere/redis.sock"
    async with gate_of(face, url, namespace="s", timeout=0.25) as dedup:
        yield dedup


@GATES
@each_face
async def test_once_refuses_another_fingerprint(redis_url: str, tmp_path: Path, face: str, gate: str) -> None:
    booked: list[int] = []

    def work(transaction: Any, id_: str, amount: int) -> int:
        booked.append(amount)
        return amount

    kind: Any = Inbox if face == "asyncio" else SyncInbox
    path = tmp_path / "inbox.db"
    inbox = kind(
        "billing", keep=WEEK, begin=partial(transaction if face == "asyncio" else transaction_now, path)
    )
    with inbox_database(inbox, path=path):
        async with gate_that(gate, redis_url, face) as dedup:
            once = inbox.once(
                lambda _, id_, amount: id_,
                fingerprint=lambda _, id_, amount: amount,
                gate=dedup,
                wait=0.1,
            )
            book = once_of(face, once, work)
            assert [await book("a", 5), await book("a", 5)] == [5, 5]
            for _ in range(2):
                with pytest.raises(MismatchError):
                    await book("a", 999)
                if gate == "forgot":
                    forgotten = dedup.forget(inbox.gate_key("a"))
                    assert await forgotten if face == "asyncio" else forgotten
            assert await book("a", 5) == 5
            assert booked == [5]
            # At once, where a call of the same process would wait for the other's result.
            found = await asyncio.gather(book("b", 7), book("b", 888), return_exceptions=True)
            assert sorted(type(each) for each in found if type(each) is not int) == [MismatchError]
    assert booked[1:] in ([7], [888])


def test_once_takes_a_function_for_its_fingerprint() -> None:
    for kind in (Inbox, SyncInbox):
        with pytest.raises(ConfigError, match=r"fingerprint=.* must be a function"):
            kind("billing", keep=WEEK, begin=lambda: None).once(str, fingerprint=5)  # type: ignore[arg-type,return-value]


@GATES
async def test_a_consumer_lays_down_another_message_under_a_used_id(
    redis_url: str, tmp_path: Path, gate: str
) -> None:
    shop = Database(tmp_path / "shop.db")
    async with gate_that(gate, redis_url) as dedup:
        consumer = Billing(dedup, inbox=shop.inbox, fingerprint=lambda message: message["amount"])
        first, other = {"id": "a", "amount": 5}, {"id": "a", "amount": 999}
        assert (await consumer.get(first)).reason is Reason.FIRST
        if gate == "forgot":
            assert dedup is not None
            await dedup.forget(shop.inbox.gate_key("a"))
        found = await consumer.get(other)
        assert (found.action, found.reason) == (Action.DEAD_LETTER, Reason.MISMATCH)
        assert isinstance(consumer.dead[0].error, MismatchError)
        # The gate does not take the first message for the one that was laid down.
        assert (await consumer.get(first)).reason is Reason.DUPLICATE
    assert (shop.effects(), consumer.runs) == (1, [first])


async def test_a_begin_that_tells_errors_in_its_words_hides_no_mismatch_and_no_lost_result(
    tmp_path: Path,
) -> None:
    """Such a message was held for ever, as if the database were away."""
    shop = Database(tmp_path / "shop.db")

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        try:
            async with transaction(shop.path) as connection:
                yield connection
        except Exception as error:
            raise LookupError("in other words") from error

    inbox = Inbox("billing", keep=WEEK, begin=begin)
    consumer = Billing(None, inbox=inbox, keep_result=True, fingerprint=lambda message: message["amount"])
    consumer.then = lambda: "invoice 7"
    first, other = {"id": "a", "amount": 5}, {"id": "a", "amount": 999}
    async with asyncio.timeout(5):
        assert (await consumer.get(first)).reason is Reason.FIRST
        async with transaction(shop.path) as connection:
            await connection.execute(f"UPDATE {inbox.table} SET result = x'ff'")  # one that is lost
        found = [await consumer.get(message) for message in (first, other)]
    assert [each.reason for each in found] == [Reason.DUPLICATE, Reason.MISMATCH]
    assert isinstance(found[0].error, FailedError)


async def test_an_error_of_begin_itself_says_nothing_of_the_row(tmp_path: Path) -> None:
    """A begin= that failed because of another call's FailedError had its message acknowledged without its work."""
    shop = Database(tmp_path / "shop.db")
    failures = [FailedError("another call's")]

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        if failures:
            raise LookupError("no settings") from failures.pop()
        async with transaction(shop.path) as connection:
            yield connection

    consumer = Billing(None, inbox=Inbox("billing", keep=WEEK, begin=begin))
    message = {"id": "a", "amount": 5}
    async with asyncio.timeout(20):
        found = await consumer.get(message)
    assert (found.reason, consumer.runs) == (Reason.FIRST, [message])


async def test_a_broker_gets_the_dead_letter(server: RedisServer, tmp_path: Path) -> None:
    database = Database(tmp_path / "shop.db")
    work = Work()
    async with shop_of(server) as shop:
        shop.raw.xadd(shop.stream, {"id": "a", "amount": "5"})
        options = {"inbox": database.inbox, "dead_letter": shop.dead}
        async with shop.consumer(
            None, work, fingerprint=lambda message: message.fields[b"amount"].decode(), **options
        ) as consumer:
            await wait_until(lambda: consumer.counts.first, description="the first is done")
            for amount in ("5", "999"):
                shop.raw.xadd(shop.stream, {"id": "a", "amount": amount})
            await wait_until(lambda: consumer.counts.duplicate, description="its copy is a duplicate")
            await wait_until(shop.dead_letters, description="a dead letter")
        assert [letter[b"amount"] for letter in shop.dead_letters()] == [b"999"]
    assert work.done == ["a"]


async def test_faststream_lays_down_another_message_under_a_used_id(tmp_path: Path) -> None:
    shop = FastStreamShop(
        None, inbox=Database(tmp_path / "shop.db").inbox, fingerprint=lambda message: message.body
    )
    shop.handle()
    async with shop.open():
        for order in (5, 5, 999):
            await shop.publish(order, message_id="a")
    assert (shop.runs, [order for _, order in shop.dead]) == ([5], [999])
