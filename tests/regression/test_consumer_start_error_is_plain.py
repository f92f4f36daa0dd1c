"""A consumer whose queue is gone raises the broker's error; it was wrapped in an ExceptionGroup."""

from __future__ import annotations

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.exceptions import ChannelNotFoundEntity

from fastdedup import Dedup
from fastdedup.integrations.rabbitmq import Consumer, message_id

from ..brokers import RabbitServer


async def on_order(message: AbstractIncomingMessage) -> None:
    raise AssertionError(message)


async def test_a_queue_that_is_gone_is_a_plain_error(rabbitmq: RabbitServer, redis_url: str) -> None:
    async with (
        Dedup(redis_url, namespace="plain") as dedup,
        await aio_pika.connect(rabbitmq.url) as connection,
        connection.channel() as channel,
    ):
        queue = await channel.declare_queue(rabbitmq.name("orders"))
        async with Consumer(queue, dedup, key=message_id, declare=True) as consumer:
            async with connection.channel() as other:
                await other.queue_delete(queue.name)
            with pytest.raises(ChannelNotFoundEntity):
                await consumer.run(on_order)
