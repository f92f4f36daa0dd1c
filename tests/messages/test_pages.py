"""The pages of the brokers: their Python runs, and does what they say."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import uuid
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import aio_pika
import nats as nats_client
import pytest
from aio_pika.abc import AbstractChannel
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from nats.js.errors import NotFoundError
from redis.asyncio import Redis

from fastdedup import Dedup
from fastdedup.integrations import kafka as kafka_consumer
from fastdedup.integrations.rabbitmq import Consumer, message_id
from fastdedup.sql.dialects import TableName, dialect_of

from ..brokers import FAST_GROUP, KafkaServer, NatsServer, RabbitServer
from ..sql_pages.pages import Page, forget
from ..waiting import cancel, wait_until

DOCS = Path(__file__).parents[2] / "docs"


def names_of(page: str, **urls: str) -> dict[str, Any]:
    """Run all of a page's Python; return its names."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    text = "\n".join(blocks)
    for old, new in urls.items():
        text = text.replace({"redis": "redis://localhost:6379/0"}.get(old, old), new)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(text, page, "exec"), names)
    return names


async def stopped(running: asyncio.Task[None]) -> None:
    await cancel(running)


async def test_kafkas_page_runs(kafka: KafkaServer, redis_url: str) -> None:
    done: list[bytes] = []
    names = names_of("kafka.md", redis=redis_url, **{"localhost:9092": kafka.url})
    fast = {**FAST_GROUP, "auto_offset_reset": "earliest"}
    names["AIOKafkaConsumer"] = lambda *given, **more: AIOKafkaConsumer(*given, **more, **fast)

    async def on_order(record: Any) -> None:
        if record.value == b"bad":
            raise kafka_consumer.DeadLetterError("this order was cancelled")
        done.append(record.value)

    names["on_order"] = on_order
    async with AIOKafkaProducer(bootstrap_servers=kafka.url) as producer:
        for value in (b"first", b"first", b"bad"):
            await producer.send_and_wait("orders", value, headers=[("message-id", value)])
    running = asyncio.create_task(names["main"]())
    await wait_until(lambda: done == [b"first"], description="it is done")
    await stopped(running)
    own = names["AIOKafkaConsumer"](
        "orders", bootstrap_servers=kafka.url, group_id="other", enable_auto_commit=False
    )
    async with Dedup(redis_url, namespace="page") as dedup:
        running = asyncio.create_task(names["consume"](own, dedup))
        dead = AIOKafkaConsumer(bootstrap_servers=kafka.url, auto_offset_reset="earliest")
        dead.subscribe(["orders.dead"])
        async with dead:
            assert (await dead.getone()).value == b"bad"
        await stopped(running)


async def test_the_page_of_redis_streams_runs(redis_url: str) -> None:
    names = names_of("redis-streams.md", redis=redis_url)
    done: list[Any] = []

    async def on_order(entry: Any) -> None:
        done.append(entry.fields[b"id"])

    names["on_order"] = on_order
    async with Redis.from_url(redis_url) as redis:
        running = asyncio.create_task(names["main"]())
        await wait_until(lambda: redis.exists("orders"), description="the group is made")
        for _ in range(2):
            await redis.xadd("orders", {"id": "order-7"})
        await wait_until(lambda: done, description="it is done")
        await stopped(running)
        assert done == [b"order-7"]
        await redis.flushdb()  # streams have no TTL


async def test_the_page_of_nats_runs(nats: NatsServer, redis_url: str) -> None:
    names = names_of("nats.md", redis=redis_url, **{"nats://localhost:4222": nats.url})
    done: list[Any] = []

    async def on_order(message: Any) -> None:
        done.append(message.data)

    names["on_order"] = on_order
    async with await nats_client.connect(nats.url) as connection:
        js = connection.jetstream()
        running = asyncio.create_task(names["main"]())
        await wait_until(lambda: stream_of(js), description="the stream is made")
        await js.publish("orders", b"order-7", headers={"Nats-Msg-Id": "m-7"})
        await wait_until(lambda: done, description="it is done")
        await stopped(running)
        await js.delete_stream("ORDERS")


async def stream_of(js: Any) -> bool:
    with suppress(NotFoundError):
        await js.consumer_info("ORDERS", "billing")
        return True
    return False


def test_the_page_of_ids_tells_the_truth() -> None:
    names = names_of("message-ids.md")
    assert names["paid"] == names["again"] != names["shipped"]
    assert len({*map(len, (names["paid"], names["click"]))}) == 1


# RabbitMQ: rabbitmq.md and recipes/migration.md


PAGE = Page("rabbitmq.md")
(START,) = PAGE.blocks("", "python")
(BILLING,) = PAGE.blocks("The inbox decides", "python")
MIGRATION = Page("recipes/migration.md")


@pytest.fixture(autouse=True)
def _inboxes_of_the_pages_go() -> Any:
    yield
    forget()


@asynccontextmanager
async def channel_of(rabbitmq: RabbitServer) -> AsyncIterator[AbstractChannel]:
    async with await aio_pika.connect(rabbitmq.url) as connection:
        yield await connection.channel(on_return_raises=True)


@asynccontextmanager
async def running(work: Awaitable[Any]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        await cancel(task)


async def put(channel: AbstractChannel, queue: str, message_id: str, body: bytes = b"5") -> None:
    message = aio_pika.Message(body, message_id=message_id, delivery_mode=2)
    await channel.default_exchange.publish(message, queue)


async def test_the_start_of_the_page_consumes(rabbitmq: RabbitServer, redis_url: str) -> None:
    orders = rabbitmq.name("orders")
    block = START.replace("amqp://guest:guest@localhost/", rabbitmq.url).replace('"orders"', f'"{orders}"')
    names = PAGE.run(block.replace("redis://localhost:6379/0", redis_url))
    seen = []

    async def on_order(message: Any) -> None:
        seen.append(message.message_id)

    names["on_order"] = on_order
    async with channel_of(rabbitmq) as channel, running(names["main"]()):
        await wait_until(lambda: _there(rabbitmq, orders), description="the queue is declared")
        for each in ("1", "1", "2"):
            await put(channel, orders, each)
        await wait_until(lambda: len(seen) == 2, description="both are worked on")
    assert sorted(seen) == ["1", "2"]


async def _there(rabbitmq: RabbitServer, queue: str) -> bool:
    async with channel_of(rabbitmq) as channel:
        try:
            await channel.declare_queue(queue, passive=True)
        except aio_pika.exceptions.ChannelClosed:
            return False
    return True


async def test_the_page_with_an_inbox_pays_once(
    rabbitmq: RabbitServer, redis_url: str, tmp_path: Path
) -> None:
    database = tmp_path / "shop.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(dialect_of("sqlite", TableName("fastdedup_inbox")).ddl())
        connection.executescript("CREATE TABLE account (id, balance); INSERT INTO account VALUES (7, 1000)")
    names = PAGE.run(
        "from fastdedup.integrations.rabbitmq import Consumer, message_id\n"
        + BILLING.replace(
            'create_async_engine("postgresql+asyncpg://localhost/shop")',
            f'create_async_engine("sqlite+aiosqlite:///{database}", connect_args={{"isolation_level": "IMMEDIATE"}})',
        )
    )

    def balance() -> int:
        with closing(sqlite3.connect(database)) as connection:
            return int(connection.execute("SELECT balance FROM account").fetchone()[0])

    async with Dedup(redis_url, namespace="m", timeout=5.0) as dedup, channel_of(rabbitmq) as channel:
        queue = await channel.declare_queue(rabbitmq.name("payments"), durable=True)
        async with running(names["consume"](queue, dedup)):
            for each in ("1", "1", "2"):
                await put(channel, queue.name, each)
            await wait_until(lambda: balance() == 990, description="two are paid")
    await names["Session"].kw["bind"].dispose()
    assert balance() == 990


async def test_a_second_queue_keeps_old_and_new_consumers_apart(
    rabbitmq: RabbitServer, redis_url: str
) -> None:
    """Some messages lie in both queues, and a new consumer dies with one of its own: each is done once."""
    source = "\n".join(each for each in MIGRATION.all_blocks("python") if "asyncio.run(" not in each)
    names = MIGRATION.run(source.replace("redis://localhost:6379/0", redis_url))
    names["LONGEST"], placed = 0.05, names["placed"]
    run = uuid.uuid4().hex
    by_old: list[str] = []
    before, both, after = ([f"{run}-{part}-{number}" for number in range(10)] for part in range(3))

    async def on_old(message: Any) -> None:
        await names["old_place"](message.message_id)
        await message.ack()
        by_old.append(message.message_id)

    async def on_new(message: Any) -> None:
        await names["place_beside_old"](message.message_id)

    async with names["dedup"], names["redis"], channel_of(rabbitmq) as channel:
        exchange = await channel.declare_exchange(rabbitmq.name("shop"), "fanout", auto_delete=True)

        async def publish(ids: list[str]) -> None:
            for each in ids * 2:
                await exchange.publish(aio_pika.Message(b"", message_id=each), "order")

        old, new = [await channel.declare_queue(rabbitmq.name(each)) for each in ("orders", "orders.new")]
        await old.bind(exchange)
        await publish(before)
        await new.bind(exchange)
        await publish(both)
        await old.unbind(exchange)
        await publish(after)
        async with channel_of(rabbitmq) as dying:  # its messages go back to their queue
            taken = [await (await dying.get_queue(new.name)).get() for _ in range(2 * len(both) + 1)]
            await names["redis"].set(f"order:{taken[-1].message_id}", "fastdedup", ex=60)
        await old.consume(on_old)
        async with AsyncExitStack() as stack:
            consumers = []
            for _ in range(2):
                options = {**names["patient"], "attempts": 100, "retry_delay": 0.02, "name": new.name}
                consumer = Consumer(new, names["dedup"], key=message_id, declare=True, **options)
                consumers.append(await stack.enter_async_context(consumer))
                await stack.enter_async_context(running(consumer.run(on_new)))
            await wait_until(
                lambda: sum(each.counts.first + each.counts.duplicate for each in consumers) == 40,
                description="the new ones have acknowledged all that they had",
            )
            await wait_until(lambda: len(by_old) == 40, description="and the old one what it had")
    assert sorted(placed) == sorted(before + both + after)


async def test_a_dead_letter_is_looked_at_and_stays(rabbitmq: RabbitServer) -> None:
    (block,) = PAGE.blocks("Dead letters", "python")
    async with channel_of(rabbitmq) as channel:
        dead = await channel.declare_queue(rabbitmq.name("orders.dead"), durable=True)
        look_at = PAGE.run(block.replace('"orders.dead"', f'"{dead.name}"'))["look_at"]
        for key in ("k-1", "k-2", "k-3"):
            headers = {"x-fastdedup-key": key, "order": "7"}
            message = aio_pika.Message(key.encode(), headers=headers, delivery_mode=2)
            await channel.default_exchange.publish(message, dead.name)
        for _ in range(2):
            async with channel_of(rabbitmq) as look:
                assert await look_at(look, "k-2") == (b"k-2", {"x-fastdedup-key": "k-2", "order": "7"})
        async with channel_of(rabbitmq) as look:
            assert await look_at(look, "k-4") is None
        assert (await channel.declare_queue(dead.name, passive=True)).declaration_result.message_count == 3
