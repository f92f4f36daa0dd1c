"""NATS in FastStream: JetStream delivers again after a delay; core NATS never delivers a message twice."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from nats.errors import ConnectionClosedError

from ....errors import ConfigError
from ... import nats
from ..settings import GuardSettings
from .base import BrokerWay, as_text, need_dead_letter, refuse_ack_first, refuse_batches, refuse_loop

_ADDED: Final = {"content-type": "", "correlation_id": "0" * 36}
"""Headers that FastStream adds to a message without them."""


class NatsWay(BrokerWay):
    """NATS, core and JetStream."""

    def message_id(self, raw: Any) -> str | None:
        """Return the header `Nats-Msg-Id`, by which JetStream itself drops duplicates."""
        return nats.message_id(raw)

    def offset(self, raw: Any) -> str | None:
        """Return stream and sequence number, and the time: a stream that is made again begins at 1."""
        try:
            return nats.sequence(raw)
        except Exception:  # noqa: BLE001 -- nats-py has an error of its own, and others if it cannot read it
            return None

    def name_of(self, subscriber: Any) -> str:
        """Return the stream, the durable consumer or queue group, and the subjects."""
        stream = getattr(getattr(subscriber, "stream", None), "name", "")
        group = getattr(subscriber.config, "durable_name", None) or subscriber.queue
        return f"nats:{stream}:{group}:{','.join(_subjects(subscriber))}"

    def check(self, subscriber: Any, settings: GuardSettings) -> None:
        """Raise ConfigError for a subscriber that acknowledges by itself, or gives up before `attempts` are over."""
        refuse_batches(subscriber)
        if not hasattr(subscriber, "queue"):
            raise ConfigError("DedupMiddleware guards messages: a watcher of keys or objects has none")
        refuse_loop(
            settings, [place for place in [settings.destination] if place and _takes(subscriber, place)]
        )
        if not self.delivers_again(subscriber):
            need_dead_letter(settings, "core NATS")
            return
        if not subscriber.extra_options.get("manual_ack", True):
            raise ConfigError(
                "the subscriber acknowledges a message before the work, so a crash would lose it: give it another "
                "ack_policy, such as AckPolicy.REJECT_ON_ERROR"
            )
        refuse_ack_first(subscriber)
        limit, attempts = subscriber.config.max_deliver, settings.rules.attempts
        if limit is not None and 0 < limit < attempts:
            raise ConfigError(
                f"JetStream gives a message up after max_deliver={limit} deliveries, before its {attempts} "
                "attempts: leave max_deliver out, because a message that waits for another delivery spends them too"
            )

    def delivers_again(self, subscriber: Any) -> bool:
        """True for JetStream."""
        return getattr(subscriber, "stream", None) is not None

    def redelivers_after(self, subscriber: Any) -> tuple[float, str] | None:
        """Return JetStream's longest time until it delivers a message again."""
        if not self.delivers_again(subscriber):
            return None
        waits, setting = nats.redelivers_after(subscriber.config)
        return max(waits), setting

    @asynccontextmanager
    async def kept_alive(self, message: Any, subscriber: Any) -> AsyncIterator[None]:
        """Tell JetStream, every third of the time that it waits for an ack, that the work goes on."""
        if not self.delivers_again(subscriber):
            yield
            return
        pause = min(nats.redelivers_after(subscriber.config)[0]) / 3
        # A task, not a task group, because a group would wrap the handler's errors.
        signs = asyncio.create_task(_signs_of_life(message, pause))
        try:
            yield
        finally:
            signs.cancel()

    async def retry(self, message: Any, subscriber: Any, delay: float) -> bool:
        """Let JetStream deliver a message again after a pause."""
        if not self.delivers_again(subscriber):
            return False
        await message.nack(delay=delay)
        return True

    async def bury(
        self, message: Any, subscriber: Any, publisher: Any, destination: str, headers: Mapping[str, Any]
    ) -> None:
        """Publish a copy. From JetStream into a stream, which confirms it; without NATS's own headers.

        With its `Nats-Msg-Id` a stream that has the message would drop its dead letter as published twice.
        """
        texts = {name: text for name, text in as_text(headers).items() if not name.startswith("Nats-")}
        if (client := message.raw_message._client) is not None:  # a TestNatsBroker has none
            nats.check_size(client, message.body, {**_ADDED, **texts})
        if self.delivers_again(subscriber):
            await subscriber.jetstream.publish(destination, message.body, headers=texts)
        else:
            await publisher.publish(message.body, subject=destination, headers=texts)

    def is_lost(self, error: Exception) -> bool:
        """True if the connection was closed for good."""
        return isinstance(error, ConnectionClosedError)

    def is_too_large(self, error: Exception) -> bool:
        """True if the message is larger than the server, JetStream or its stream takes."""
        return nats.is_too_large(error)


async def _signs_of_life(message: Any, pause: float) -> None:
    while True:
        await asyncio.sleep(pause)
        with suppress(Exception):  # the connection may come back in time
            await message.in_progress()


def _subjects(subscriber: Any) -> list[str]:
    subject = subscriber.subject  # text on FastStream 0.6
    found = [getattr(subject, "broker_address", subject), *(subscriber.filter_subjects or ())]
    return sorted({each for each in found if each})


def _takes(subscriber: Any, subject: str) -> bool:
    """True if one of a subscriber's subjects, with `*` and `>` in them, covers a subject."""
    return any(re.fullmatch(_pattern(each), subject) for each in _subjects(subscriber))


def _pattern(subject: str) -> str:
    return re.escape(subject).replace(r"\*", r"[^.]+").replace(">", ".+")
