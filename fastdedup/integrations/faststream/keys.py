"""The sources of a FastStream message's key. Each reads the data that was on the wire.

FastStream's own `message.message_id` is not a key: on RabbitMQ and Redis it is random if the publisher has set none,
on Kafka it names neither topic nor partition, and on NATS it is not the header `Nats-Msg-Id`.
"""

from __future__ import annotations

from typing import Any

from ...messages.keys import body, header
from .brokers import broker_of_message

__all__ = ["Message", "body", "header", "message_id", "offset"]

Message = Any
"""A message of FastStream, such as `RabbitMessage`; its `raw_message` is the broker's own."""


def message_id(message: Message) -> str | None:
    """Return the id that the message has on the wire.

    RabbitMQ: the property `message_id`. NATS: the header `Nats-Msg-Id`. Redis Streams: the stream and the entry's id.
    Kafka has no message ids, and neither have Redis lists and channels.
    """
    return broker_of_message(message).message_id(message.raw_message)


def offset(message: Message) -> str | None:
    """Return the message's place in the broker's log, with its time: a place may be given out again.

    Kafka: topic, partition and offset. NATS JetStream and Redis Streams: the stream, and the number in it. A
    redelivery has the same place; a message that is published twice has two.
    """
    return broker_of_message(message).offset(message.raw_message)
