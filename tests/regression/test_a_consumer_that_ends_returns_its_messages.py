"""A RabbitMQ consumer that is stopped or cancelled returns what it did not do, though its channel stays open.

The messages stayed unacknowledged: until the channel closed the broker kept them from all other consumers. A
cancelled consumer was never cancelled at the broker, which sent it up to `prefetch` further messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ..brokers import RabbitServer
from ..messages.test_rabbitmq import Orders, shop

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
