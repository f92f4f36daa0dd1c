"""aiormq tells a returned message by its id: of twins under way the first counted as confirmed, and was lost."""

from __future__ import annotations

import asyncio

import aio_pika
from aio_pika import IncomingMessage

from fastdedup.integrations.rabbitmq.places import UnroutableError, publish_copy

from ..brokers import RabbitServer


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
