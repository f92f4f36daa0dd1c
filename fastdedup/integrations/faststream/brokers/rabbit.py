"""RabbitMQ in FastStream. A message that was not done is held in place for its delay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....errors import ConfigError
from ..settings import GuardSettings
from .base import BrokerWay, refuse_ack_first, refuse_loop


class RabbitWay(BrokerWay):
    """RabbitMQ, by aio-pika."""

    def message_id(self, raw: Any) -> str | None:
        """Return the property `message_id`, as it was on the wire."""
        return raw.message_id  # type: ignore[no-any-return]

    def name_of(self, subscriber: Any) -> str:
        """Return the queue's name, as `fastdedup.integrations.rabbitmq.Consumer` does."""
        return f"{subscriber._outer_config.prefix}{subscriber.queue.name}"

    def check(self, subscriber: Any, settings: GuardSettings) -> None:
        """Raise ConfigError for an early acknowledgement, a stream, or a delivery limit below `attempts`."""
        from ...rabbitmq.places import check_queue

        refuse_ack_first(subscriber, "another ack_policy, such as AckPolicy.REJECT_ON_ERROR")
        name = self.name_of(subscriber)
        check_queue(name, subscriber.queue.arguments or {}, settings.attempts)
        refuse_loop(settings, [name])

    async def bury(
        self, message: Any, subscriber: Any, publisher: Any, destination: str, headers: Mapping[str, Any]
    ) -> None:
        """Publish a copy to a queue; raise ConfigError where there is none of that name."""
        from aio_pika import DeliveryMode, Message
        from aiormq import spec

        raw = message.raw_message
        copy = Message(
            raw.body,
            headers=dict(headers),
            content_type=raw.content_type,
            content_encoding=raw.content_encoding,
            delivery_mode=DeliveryMode.PERSISTENT,
            priority=raw.priority,
            correlation_id=raw.correlation_id,
            reply_to=raw.reply_to,
            message_id=raw.message_id,
            timestamp=raw.timestamp,
            type=raw.type,
            app_id=raw.app_id,
        )
        answer = await publisher.publish(copy, queue=destination, mandatory=True)
        if answer is not None and not isinstance(answer, spec.Basic.Ack):  # None from a TestRabbitBroker
            raise ConfigError(f"there is no queue {destination!r} for dead letters: declare it")
