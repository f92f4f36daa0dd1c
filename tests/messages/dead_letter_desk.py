"""A queue with a consumer that fails on wish."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from fastdedup import Dedup
from fastdedup.integrations.rabbitmq import Consumer, message_id

from ..brokers import RabbitServer
from ..waiting import wait_until


class Desk:
    """One queue. Its handler fails at the messages whose ids are in `poison`."""

    def __init__(self, channel: AbstractChannel, dedup: Dedup, queue: str) -> None:
        self.channel = channel
        self.dedup = dedup
        self.queue = queue
        self.dead = f"{queue}.dead"
        self.poison: set[str | None] = set()
        self.done: Counter[str | None] = Counter()
        self.seen: list[AbstractIncomingMessage] = []

    async def publish(self, *ids: str | None, to: str = "", **options: Any) -> None:
        for number in ids:
            properties = {"message_id": number, "delivery_mode": 2, **options}
            await self.channel.default_exchange.publish(
                aio_pika.Message(b"body", **properties), to or self.queue
            )

    async def handle(self, message: AbstractIncomingMessage) -> None:
        self.seen.append(message)
        if message.message_id in self.poison:
            raise ValueError("no such customer")
        self.done[message.message_id] += 1

    @asynccontextmanager
    async def consumer(self, **options: Any) -> AsyncIterator[Consumer]:
        queue = await self.channel.get_queue(self.queue)
        settings = {"key": message_id, "declare": True, "attempts": 1, "retry_delay": 0.05, **options}
        async with Consumer(queue, self.dedup, **settings) as consumer:
            running = asyncio.create_task(consumer.run(self.handle))
            yield consumer
            consumer.stop()
            await running

    async def bury(self, *ids: str | None, there: int = 0, **options: Any) -> None:
        """Publish messages, and let each become a dead letter, and those that are `there` already."""
        self.poison |= set(ids)
        await self.publish(*ids)
        async with self.consumer(**options) as consumer:
            await wait_until(
                lambda: consumer.counts.dead_lettered == len(ids) + there, description="all are dead letters"
            )
        self.poison -= set(ids)

    async def taken(self, queue: str, count: int) -> list[AbstractIncomingMessage]:
        """Take so many messages of a queue, which may still be on their way back into it."""
        messages: list[AbstractIncomingMessage] = []
        declared = await self.channel.get_queue(queue)
        while len(messages) < count:
            if message := await declared.get(fail=False):
                messages.append(message)
                await message.ack()
        assert await declared.get(fail=False) is None
        return messages


@asynccontextmanager
async def desk_at(rabbitmq: RabbitServer, kind: str = "classic") -> AsyncIterator[Desk]:
    """Yield a desk with a queue of its own."""
    connection = await aio_pika.connect(rabbitmq.url)
    async with connection, Dedup("memory://") as dedup:
        channel = await connection.channel()
        queue = await channel.declare_queue(rabbitmq.name(), durable=True, arguments={"x-queue-type": kind})
        yield Desk(channel, dedup, queue.name)
