"""RabbitMQ with aio-pika: a consumer whose handler does its work once for each message.

    async with Consumer(queue, dedup, key=message_id, declare=True) as consumer:
        await consumer.run(on_order)

Main path: `Consumer.run` → `Deliveries.handle` → an ack, a delayed retry or a dead letter.
"""

try:
    import aio_pika as _aio_pika  # noqa: F401
except ImportError as error:
    raise ImportError(
        "fastdedup.integrations.rabbitmq needs aio-pika: pip install 'fastdedup[rabbitmq]'"
    ) from error

from ...messages import DeadLetterError
from ...messages.keys import body, header
from .consumer import Consumer, message_id
from .places import Places

__all__ = ["Consumer", "DeadLetterError", "Places", "body", "header", "message_id"]
