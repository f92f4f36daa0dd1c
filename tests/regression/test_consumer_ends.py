"""How consumers start and end: with a plain error, with their cancellation, and without messages in hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import aio_pika
import pytest
from aio_pika import IncomingMessage
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.exceptions import ChannelNotFoundEntity
from redis.asyncio import Redis

from fastdedup import Dedup
from fastdedup.integrations.rabbitmq import Consumer as RabbitConsumer
from fastdedup.integrations.rabbitmq import message_id
from fastdedup.integrations.rabbitmq.places import UnroutableError, publish_copy
from fastdedup.integrations.redis_streams import Consumer, entry_id

from ..brokers import RabbitServer
from ..messages.test_rabbitmq import Orders, shop

# A RabbitMQ consumer that is stopped or cancelled returns what it did not do, though its channel stays
# open. The messages stayed unacknowledged: until the channel closed the broker kept them from all other
# consumers. A cancelled consumer was never cancelled at the broker, which sent it up to `prefetch` further
# messages.


WaitUntil = Callable[..., Awaitable[Any]]


async def all_come_to_another(orders: Orders, wait_until: WaitUntil, *ids: str) -> None:
    async def ready() -> bool:
        return await orders.left() == len(ids)

    await wait_until(ready, description="they are in the queue")
    orders.then = lambda message: None
    async with orders.consuming() as other:
        await wait_until(lambda: other.counts.first == len(ids), description="another consumer does them")


async def test_a_stopped_consumer_returns_what_it_did_not_do(
    rabbitmq: RabbitServer, redis_url: str, wait_until: WaitUntil
) -> None:
    async with shop(rabbitmq, redis_url) as orders:
        orders.then = lambda message: asyncio.Event().wait()
        async with orders.consuming(grace=0.05) as consumer:
            await orders.publish("1", "2")
            await wait_until(lambda: len(orders.runs) == 2, description="both are begun")
            consumer.stop()
            consumer.stop()
        await all_come_to_another(orders, wait_until, "1", "2")


async def test_a_cancelled_consumer_returns_what_it_did_not_do(
    rabbitmq: RabbitServer, redis_url: str, wait_until: WaitUntil
) -> None:
    async with shop(rabbitmq, redis_url) as orders, orders.consumer() as consumer:
        orders.then = lambda message: asyncio.Event().wait()
        task = asyncio.create_task(consumer.run(orders.handler))
        await orders.publish("1")
        await wait_until(lambda: orders.runs["1"], description="it is begun")
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await orders.publish("2")
        await all_come_to_another(orders, wait_until, "1", "2")


# A consumer whose task was cancelled went on for ever where its broker's client had lost the cancellation.
# `asyncio.wait_for` of Python 3.11 drops a cancellation that comes as its awaitable has just ended.
# redis-py sends each command by it, nats-py waits for each reply by it. So the loop that reads, in the
# cancelled task itself, read on.


STREAM, GROUP = "forever-orders", "billing"


class LosingRedis(Redis):
    """Has a task cancelled once in the middle of a command, and loses that, as `asyncio.wait_for` does."""

    def lose(self, command: str, task: asyncio.Task[None]) -> None:
        self.losing = command
        self.task = task

    async def xinfo_groups(self, *given: Any, **options: Any) -> Any:
        return await self._or_lose("xinfo_groups", super().xinfo_groups(*given, **options))

    async def xreadgroup(self, *given: Any, **options: Any) -> Any:
        return await self._or_lose("xreadgroup", super().xreadgroup(*given, **options))

    async def _or_lose(self, name: str, command: Coroutine[Any, Any, Any]) -> Any:
        found = await command
        if self.losing == name:
            self.losing = ""
            self.task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        return found


@pytest.mark.parametrize("command", ["xinfo_groups", "xreadgroup"])
async def test_a_cancelled_consumer_ends_though_its_client_lost_that(redis_url: str, command: str) -> None:
    async def on_order(entry: Any) -> None: ...

    async def consume() -> None:
        async with Consumer(redis, dedup, stream=STREAM, group=GROUP, key=entry_id) as consumer:
            made.append(consumer)
            await consumer.run(on_order)

    made: list[Consumer] = []
    async with LosingRedis.from_url(redis_url) as redis, Dedup(redis_url, namespace="r") as dedup:
        await redis.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        await redis.xadd(STREAM, {"id": "order-7"})  # so that the first read does not wait
        running = asyncio.create_task(consume())
        redis.lose(command, running)
        _, pending = await asyncio.wait([running], timeout=5.0)
        for each in made:
            each.stop()
        await asyncio.wait([running])
        await redis.delete(STREAM)
    assert not pending
    assert running.cancelled()


# A consumer whose queue is gone raises the broker's error; it was wrapped in an ExceptionGroup.


async def on_order(message: AbstractIncomingMessage) -> None:
    raise AssertionError(message)


async def test_a_queue_that_is_gone_is_a_plain_error(rabbitmq: RabbitServer, redis_url: str) -> None:
    async with (
        Dedup(redis_url, namespace="plain") as dedup,
        await aio_pika.connect(rabbitmq.url) as connection,
        connection.channel() as channel,
    ):
        queue = await channel.declare_queue(rabbitmq.name("orders"))
        async with RabbitConsumer(queue, dedup, key=message_id, declare=True) as consumer:
            async with connection.channel() as other:
                await other.queue_delete(queue.name)
            with pytest.raises(ChannelNotFoundEntity):
                await consumer.run(on_order)


# aiormq tells a returned message by its id: of twins under way the first counted as confirmed, and was
# lost.


async def test_no_twin_counts_as_confirmed_where_no_queue_takes_it(rabbitmq: RabbitServer) -> None:
    async with await aio_pika.connect(rabbitmq.url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(rabbitmq.name(), auto_delete=True)
        for _ in range(3):
            await channel.default_exchange.publish(aio_pika.Message(b"", message_id="order-7"), queue.name)
        underlay = await channel.get_underlay_channel()
        twins = [IncomingMessage(await underlay.basic_get(queue.name)) for _ in range(3)]
        answers = await asyncio.gather(
            *(publish_copy(twin, "", "gone", {}) for twin in twins), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [UnroutableError] * 3
