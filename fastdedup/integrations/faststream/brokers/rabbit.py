"""RabbitMQ in FastStream. A message that was not done is held in place for its delay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....messages.headers import QUEUE
from ..settings import GuardSettings
from .base import BrokerWay, refuse_ack_first, refuse_loop


class RabbitWay(BrokerWay):
    """RabbitMQ, by aio-pika."""

    def message_id(self, raw: Any) -> str | None:
        """Return the property `message_id` from the wire, which the publisher has set."""
        from ...rabbitmq.places import restore_origin

        restore_origin(raw)  # aiormq invents an id for a dead letter's copy that had none
        return raw.message_id  # type: ignore[no-any-return]

    def name_of(self, subscriber: Any) -> str:
        """Return the queue's name, like `fastdedup.integrations.rabbitmq.Consumer`."""
        return f"{subscriber._outer_config.prefix}{subscriber.queue.name}"

    def check(self, subscriber: Any, settings: GuardSettings) -> None:
        """Raise ConfigError for an early acknowledgement, a stream, or a limit below `attempts` or `wait`."""
        from ...rabbitmq.places import check_hold, check_queue

        refuse_ack_first(subscriber)
        name = self.name_of(subscriber)
        check_queue(name, subscriber.queue.arguments or {}, settings.rules.attempts)
        held = settings.rules.wait + settings.rules.retry_delay
        check_hold(name, subscriber.queue.arguments or {}, held, "wait + retry_delay")
        refuse_loop(settings, [name])

    def redelivers_after(self, subscriber: Any) -> tuple[float, str] | None:
        """Return the queue's own `x-consumer-timeout`, if it was declared with one."""
        from ...rabbitmq.places import ack_timeout

        timeout = ack_timeout(subscriber.queue.arguments or {})
        return None if timeout is None else (timeout, "x-consumer-timeout")

    async def bury(
        self, message: Any, subscriber: Any, publisher: Any, destination: str, headers: Mapping[str, Any]
    ) -> None:
        """Publish a copy to a queue, on the message's channel."""
        from aio_pika import Message

        from ...rabbitmq.places import publish_copy

        raw, more = message.raw_message, {**headers, QUEUE: self.name_of(subscriber)}
        if type(raw).__module__ != "faststream.rabbit.testing":
            await publish_copy(raw, "", destination, more)
            return
        # A TestRabbitBroker has no channels.
        copy = Message(raw.body, headers=more, content_type=raw.content_type, message_id=raw.message_id)
        await publisher.publish(copy, queue=destination)

    def is_lost(self, error: Exception) -> bool:
        """True if the message's channel was closed."""
        from ...rabbitmq.replies import LOST

        return isinstance(error, LOST)

    def is_too_large(self, error: Exception) -> bool:
        """True if the headers do not fit into one frame."""
        from ...rabbitmq.places import is_too_large

        return is_too_large(error)
