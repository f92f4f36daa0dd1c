"""Kafka by aiokafka and confluent-kafka in FastStream. A message that was not done is held: its partition waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ....errors import ConfigError
from ....messages.keys import place_in_log
from ..settings import GuardSettings
from .base import BrokerWay, as_text, need_dead_letter, refuse_ack_first, refuse_batches, refuse_loop

TOO_LARGE: Final = 10
"""Kafka's code for a record that exceeds `max_request_size`, or the topic's `max.message.bytes`."""


class KafkaWay(BrokerWay):
    """Kafka, by aiokafka."""

    def offset(self, raw: Any) -> str | None:
        """Return topic, partition and offset, and the record's time: a topic that is made again begins at 0."""
        return place_in_log(raw.topic, raw.partition, raw.offset, raw.timestamp)

    def name_of(self, subscriber: Any) -> str:
        """Return the group and its topics."""
        return f"kafka:{subscriber.group_id}:{','.join(_topics(subscriber))}"

    def check(self, subscriber: Any, settings: GuardSettings) -> None:
        """Raise ConfigError for a subscriber that commits before the work, has no group, or takes batches."""
        refuse_batches(subscriber)
        refuse_ack_first(
            subscriber, "ack_policy=AckPolicy.ACK: FastStream commits Kafka's offsets first by default"
        )
        if not subscriber.group_id:
            raise ConfigError("a subscriber of Kafka commits its offsets for a group: give it group_id=")
        need_dead_letter(settings, "Kafka")
        refuse_loop(settings, _topics(subscriber))

    async def bury(
        self, message: Any, subscriber: Any, publisher: Any, destination: str, headers: Mapping[str, Any]
    ) -> None:
        """Publish a copy, with the same record key."""
        await publisher.publish(
            message.body,
            topic=destination,
            key=self.record_key(message.raw_message),
            headers=as_text(headers),
        )

    def is_too_large(self, error: Exception) -> bool:
        """True if the record is larger than the producer, or the topic, takes."""
        return getattr(error, "errno", None) == TOO_LARGE

    def record_key(self, raw: Any) -> Any:
        """Return a record's own key, by which Kafka chooses a partition."""
        return raw.key


def _topics(subscriber: Any) -> list[str]:
    """Return a subscriber's sources: topics, or the topics of its partitions, or its pattern."""
    topics = [getattr(topic, "name", topic) for topic in subscriber.topics]  # FastStream 0.6 has them as text
    topics += [partition.topic for partition in subscriber.partitions]
    if pattern := getattr(subscriber, "_pattern", None):
        topics.append(f"{subscriber._outer_config.prefix}{pattern}")
    return sorted(set(topics))


class ConfluentWay(KafkaWay):
    """Kafka, by confluent-kafka: the same as with aiokafka, except for the reading of a record."""

    def offset(self, raw: Any) -> str | None:
        """Return topic, partition and offset, and the record's time."""
        return place_in_log(raw.topic(), raw.partition(), raw.offset(), raw.timestamp()[1])

    def is_too_large(self, error: Exception) -> bool:
        """True if the record is larger than the producer, or the topic, takes."""
        # A KafkaError, in a KafkaException.
        code = getattr(error.args[0], "code", None) if error.args else None
        return code is not None and code() == TOO_LARGE

    def record_key(self, raw: Any) -> Any:
        """Return a record's own key."""
        return raw.key()
