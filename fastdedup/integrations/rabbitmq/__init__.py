"""RabbitMQ with aio-pika: a consumer whose handler does its work once for each message.

    async with Consumer(queue, dedup, key=message_id, declare=True) as consumer:
        await consumer.run(on_order)

Main path: `Consumer.run` → `Deliveries.handle` → an ack, a delayed retry or a dead letter.
"""

from ...extras import needs

with needs(__name__, "aio-pika", "'fastdedup[rabbitmq]'"):
    import aio_pika as _aio_pika  # noqa: F401

from ...messages import DeadLetterError
from ...messages.keys import body, header
from .consumer import Consumer, message_id
from .places import Places

__all__ = ["Consumer", "DeadLetterError", "Places", "body", "header", "message_id"]
