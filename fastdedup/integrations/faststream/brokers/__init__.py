"""The rules for each broker's subscribers and messages: a file for each, found by FastStream's module for it."""

from __future__ import annotations

from typing import Any, Final

from ....errors import ConfigError
from .base import BrokerWay
from .kafka import ConfluentWay, KafkaWay
from .nats import NatsWay
from .rabbit import RabbitWay
from .redis import RedisWay

__all__ = ["BrokerWay", "broker_of", "broker_of_message"]

BROKERS: Final[dict[str, BrokerWay]] = {
    "rabbit": RabbitWay(),
    "kafka": KafkaWay(),
    "confluent": ConfluentWay(),
    "nats": NatsWay(),
    "redis": RedisWay(),
}


def broker_of(subscriber: Any) -> BrokerWay:
    """Return the rules for a subscriber's broker.

    Raises:
        ConfigError: the broker is not known here.
    """
    return _find(subscriber, "subscribers")


def broker_of_message(message: Any) -> BrokerWay:
    """Return the rules for a message's broker. Errors: see `broker_of`."""
    return _find(message, "messages")


def _find(thing: Any, what: str) -> BrokerWay:
    for cls in type(thing).__mro__:
        package, _, rest = cls.__module__.partition(".")
        if package == "faststream" and (found := BROKERS.get(rest.partition(".")[0])):
            return found
    raise ConfigError(
        f"DedupMiddleware guards {what} of RabbitMQ, Kafka, NATS and Redis, got {type(thing).__qualname__} of "
        f"{type(thing).__module__}"
    )
