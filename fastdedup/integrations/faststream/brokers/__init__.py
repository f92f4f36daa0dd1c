"""The rules for each broker's subscribers and messages: a file for each, found by FastStream's module for it."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, Final

from ....errors import ConfigError
from .base import BrokerWay

__all__ = ["BrokerWay", "broker_of", "broker_of_message"]

_WAYS: Final = {
    "rabbit": (".rabbit", "RabbitWay"),
    "kafka": (".kafka", "KafkaWay"),
    "confluent": (".kafka", "ConfluentWay"),
    "nats": (".nats", "NatsWay"),
    "redis": (".redis", "RedisWay"),
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
        if package == "faststream" and (found := _WAYS.get(rest.partition(".")[0])):
            return _made(*found)
    raise ConfigError(
        f"DedupMiddleware guards {what} of RabbitMQ, Kafka, NATS and Redis, got {type(thing).__qualname__} of "
        f"{type(thing).__module__}"
    )


@cache
def _made(module: str, name: str) -> BrokerWay:
    """Return a broker's rules. They are imported with its first subscriber: other clients may not be installed."""
    way: BrokerWay = getattr(import_module(module, __name__), name)()
    return way
