"""`BrokerWay`: the differences between brokers. A new broker is one subclass, and one line in the table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from faststream import AckPolicy

from ....errors import ConfigError
from ..settings import GuardSettings


class BrokerWay(ABC):
    """One kind of broker. It has no state, so all subscribers share it."""

    # Keys

    def message_id(self, raw: Any) -> str | None:
        """Return the id that a message of the broker has on the wire, or None."""
        return None

    def offset(self, raw: Any) -> str | None:
        """Return a message's place in the broker's log, or None."""
        return None

    # Subscribers

    @abstractmethod
    def name_of(self, subscriber: Any) -> str:
        """Return a subscriber's name: the same in each process that shares its work, and in no other."""

    @abstractmethod
    def check(self, subscriber: Any, settings: GuardSettings) -> None:
        """Check that a subscriber can be guarded.

        Raises:
            ConfigError: it cannot, with its present settings.
        """

    def delivers_again(self, subscriber: Any) -> bool:
        """True if a message that is given back is delivered again."""
        return True

    def redelivers_after(self, subscriber: Any) -> tuple[float, str] | None:
        """Return the seconds that the broker waits for an ack, and the setting's name; None if it is not known."""
        return None

    # Messages

    @asynccontextmanager
    async def kept_alive(self, message: Any, subscriber: Any) -> AsyncIterator[None]:
        """Keep the broker from delivering a message again while its work runs."""
        yield

    async def retry(self, message: Any, subscriber: Any, delay: float) -> bool:
        """Let the broker deliver a message again after a pause. False if it can only be delayed by holding it."""
        return False

    async def ack(self, message: Any, subscriber: Any) -> None:
        """Acknowledge a message."""
        await message.ack()

    @abstractmethod
    async def bury(
        self, message: Any, subscriber: Any, publisher: Any, destination: str, headers: Mapping[str, Any]
    ) -> None:
        """Publish a dead letter; return once the broker has confirmed it."""

    def is_lost(self, error: Exception) -> bool:
        """True if an error of `bury` says that the message itself is lost here: the broker delivers it again."""
        return False

    def is_too_large(self, error: Exception) -> bool:
        """True if an error of `bury` says that the dead letter may have room with fewer headers."""
        return False


def refuse_batches(subscriber: Any) -> None:
    """Raise ConfigError if a subscriber takes many messages at once: they would share one key and one outcome."""
    if "Batch" in type(subscriber).__name__:
        raise ConfigError(
            "DedupMiddleware guards single messages, and this subscriber takes batches: remove batch=True, or put "
            "the subscriber on a router without the middleware"
        )


def refuse_ack_first(
    subscriber: Any, instead: str = "another ack_policy, such as AckPolicy.REJECT_ON_ERROR"
) -> None:
    """Raise ConfigError if a message is acknowledged before its work: a crash would lose it."""
    if subscriber.ack_policy is AckPolicy.ACK_FIRST:
        name = repr(subscriber.calls.name) if subscriber.calls else "without a handler"
        raise ConfigError(
            f"the subscriber {name} acknowledges a message before the work, so a crash would "
            f"lose it: give it {instead}"
        )


def need_dead_letter(settings: GuardSettings, what: str) -> None:
    """Raise ConfigError if dead letters would have no place, and the settings do not say `DISCARD`."""
    if settings.dead_letter is None:
        raise ConfigError(
            f"{what} has no place for dead letters: give dead_letter='orders.dead', a name to publish them to, or "
            "dead_letter=DISCARD to log and acknowledge them"
        )


def refuse_loop(settings: GuardSettings, places: list[str]) -> None:
    """Raise ConfigError if dead letters would come back to the subscriber."""
    if settings.destination in places:
        raise ConfigError(
            f"dead_letter={settings.destination!r} is what the subscriber consumes: dead letters would come back "
            "to it. Name another place"
        )


def as_text(headers: Mapping[str, Any]) -> dict[str, str]:
    """Return headers for a broker whose headers are text."""
    return {name: str(value) for name, value in headers.items()}
