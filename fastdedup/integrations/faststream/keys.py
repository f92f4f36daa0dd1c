"""The sources of a FastStream message's key. Each reads the data that was on the wire.

FastStream's own `message.message_id` is not a key: on RabbitMQ and Redis it is random if the publisher has set none,
on Kafka it names neither topic nor partition, and on NATS it is not the header `Nats-Msg-Id`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...messages.keys import body_digest, text_of
from .brokers import broker_of_message

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


def header(name: str) -> Callable[[Message], str | None]:
    """Return a rule: the key is a header's value."""

    def key(message: Message) -> str | None:
        return text_of(message.headers.get(name))

    return key


def body(message: Message) -> str:
    """Return a digest of the message's body.

    Two orders with equal bodies are one order then: choose it only if a body names its event, by a time or a
    number.
    """
    return body_digest(message.body)
