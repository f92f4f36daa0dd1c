"""Kafka with confluent-kafka in FastStream: the same as with aiokafka, except for the reading of a record."""

from __future__ import annotations

from typing import Any

from ....messages.keys import place_in_log
from .kafka import TOO_LARGE, KafkaWay


class ConfluentWay(KafkaWay):
    """Kafka, by confluent-kafka."""

    def offset(self, raw: Any) -> str | None:
        """Return topic, partition and offset, and the record's time."""
        return place_in_log(raw.topic(), raw.partition(), raw.offset(), raw.timestamp()[1])

    def is_too_large(self, error: Exception) -> bool:
        """True if the record is larger than the producer, or the topic, takes."""
        code = (
            getattr(error.args[0], "code", None) if error.args else None
        )  # a KafkaError, in a KafkaException
        return code is not None and code() == TOO_LARGE

    def record_key(self, raw: Any) -> Any:
        """Return a record's own key."""
        return raw.key()
