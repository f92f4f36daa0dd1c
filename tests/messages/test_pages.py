"""The pages of the brokers: their Python runs, and does what they say."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats as nats_client
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from nats.js.errors import NotFoundError
from redis.asyncio import Redis

from fastdedup import Dedup
from fastdedup.integrations import kafka as kafka_consumer

from ..brokers import FAST_GROUP, KafkaServer, NatsServer

Waiter = Callable[..., Awaitable[Any]]
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
    running.cancel()
    await asyncio.wait([running])


async def test_kafkas_page_runs(kafka: KafkaServer, redis_url: str, wait_until: Waiter) -> None:
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


async def test_the_page_of_redis_streams_runs(redis_url: str, wait_until: Waiter) -> None:
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


async def test_the_page_of_nats_runs(nats: NatsServer, redis_url: str, wait_until: Waiter) -> None:
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
