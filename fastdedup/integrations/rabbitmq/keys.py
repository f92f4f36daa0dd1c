"""The sources of a RabbitMQ message's key."""

from __future__ import annotations

from collections.abc import Callable

from aio_pika.abc import AbstractMessage

from ...messages.keys import body_digest, text_of


def message_id(message: AbstractMessage) -> str | None:
    """Return the property `message_id`, which the publisher has set.

    aio-pika sends a random one if its publisher sets none: then a message that is published again has another id.
    """
    return message.message_id


def header(name: str) -> Callable[[AbstractMessage], str | None]:
    """Return a rule: the key is a header's value."""

    def key(message: AbstractMessage) -> str | None:
        return text_of(message.headers.get(name))

    return key


def body(message: AbstractMessage) -> str:
    """Return a digest of the message's body.

    Two orders with equal bodies are one order then: choose it only if a body names its event, by a time or a
    number.
    """
    return body_digest(message.body)
