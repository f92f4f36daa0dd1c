"""RabbitMQ in FastStream. A message that was not done is held in place for its delay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aio_pika import Message

from ....messages.headers import QUEUE
from ...rabbitmq import places
from ...rabbitmq.replies import LOST
from ..settings import GuardSettings
from .base import BrokerWay, refuse_ack_first, refuse_loop


class RabbitWay(BrokerWay):
    """RabbitMQ, by aio-pika."""

    def message_id(self, raw: Any) -> str | None:
        """Return the property `message_id` from the wire, which the publisher has set."""
        places.restore_origin(raw)  # aiormq invents an id for a dead letter's copy that had none
        return raw.message_id  # type: ignore[no-any-return]

    def name_of(self, subscriber: Any) -> str:
        """Return the queue's name, like `fastdedup.integrations.rabbitmq.Consumer`."""
        return f"{subscriber._outer_config.prefix}{subscriber.queue.name}"

    def check(self, subscriber: Any, settings: GuardSettings) -> None:
        """Raise ConfigError for an early acknowledgement, a stream, or a limit below `attempts` or `wait`."""
        refuse_ack_first(subscriber)
        name = self.name_of(subscriber)
        places.check_queue(name, subscriber.queue.arguments or {}, settings.rules.attempts)
        held = settings.rules.wait + settings.rules.retry_delay
        places.check_hold(name, subscriber.queue.arguments or {}, held, "wait + retry_delay")
        refuse_loop(settings, [name])

    def redelivers_after(self, subscriber: Any) -> tuple[float, str] | None:
        """Return the queue's own `x-consumer-timeout`, if it was declared with one."""
        timeout = places.ack_timeout(subscriber.queue.arguments or {})
        return None if timeout is None else (timeout, "x-consumer-timeout")

    async def bury(
        self, message: Any, subscriber: Any, publisher: Any, destination: str, headers: Mapping[str, Any]
    ) -> None:
        """Publish a copy to a queue, on the message's channel."""
        raw, more = message.raw_message, {**headers, QUEUE: self.name_of(subscriber)}
        if type(raw).__module__ != "faststream.rabbit.testing":
            await places.publish_copy(raw, "", destination, more)
            return
        # A TestRabbitBroker has no channels.
        copy = Message(raw.body, headers=more, content_type=raw.content_type, message_id=raw.message_id)
        await publisher.publish(copy, queue=destination)

    def is_lost(self, error: Exception) -> bool:
        """True if the message's channel was closed."""
        return isinstance(error, LOST)

    def is_too_large(self, error: Exception) -> bool:
        """True if the headers do not fit into one frame."""
        return places.is_too_large(error)
