"""The sources of a RabbitMQ message's key."""

from __future__ import annotations

from aio_pika.abc import AbstractMessage

from ...messages.keys import body, header

__all__ = ["body", "header", "message_id"]


def message_id(message: AbstractMessage) -> str | None:
    """Return the property `message_id`, which the publisher has set.

    aio-pika sends a random one if its publisher sets none: then a message that is published again has another id.
    """
    return message.message_id
