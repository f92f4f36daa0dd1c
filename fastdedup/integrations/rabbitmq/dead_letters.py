"""Dead letters: look at them, and send them back to the queue that they came from. Main path: `replay`.

RabbitMQ cannot show a message without handing it out. So both functions take messages unacknowledged, on a channel of
their own, and give back those that stay. If they end in between for any reason, the broker still has every message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import anyio
from aio_pika import IncomingMessage
from aio_pika.abc import AbstractChannel
from aiormq import spec
from aiormq.abc import AbstractChannel as Wire
from aiormq.exceptions import ChannelNotFoundEntity

from ...checks import check_count, check_flag
from ...errors import ConfigError
from ...messages.consumer import GOODBYE
from ...messages.headers import AT, CONSUMER, ERROR, KEY, LEFT_OUT, QUEUE, REASON, again_headers, attempts_of
from ...messages.keys import text_of
from .places import DEATHS, HeadersTooLargeError, RefusedError, UnroutableError, publish_copy, restore_origin
from .replies import reply


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter. Unknown values are None: the broker, or another program, may have put it there.

    Attributes:
        key: the message's key; without one its message id.
        attempts: how often the handler was begun for it.
        reason: the reason: one of `fastdedup.messages.Reason`, or the broker's own word.
        error: the last attempt's error.
        consumer: the consumer that gave it up.
        queue: the queue that it came from, to which `replay` sends it.
        at: when it was given up, by ISO 8601.
        size: bytes of its body.
    """

    key: str | None
    attempts: int
    reason: str | None
    error: str | None
    consumer: str | None
    queue: str | None
    at: str | None
    size: int


@dataclass(slots=True)
class Replay:
    """The result of a `replay`.

    Attributes:
        seen: dead letters that were looked at.
        replayed: those that were sent back, or would be with `dry_run`.
        keys: the keys of those.
        kept: chosen ones that could not be sent back, by the reason. They are still dead letters.
    """

    seen: int = 0
    replayed: int = 0
    keys: set[str] = field(default_factory=set)
    kept: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The oldest dead letters of a queue, and the number of all."""

    letters: tuple[DeadLetter, ...]
    total: int


async def list_dead_letters(channel: AbstractChannel, queue: str, limit: int = 50) -> DeadLetters:
    """Look at the oldest dead letters of a queue, and leave them there.

    Afterwards each is marked as redelivered. A quorum queue without a delivery limit then has them at its end.

    Raises:
        ConfigError: there is no such queue.
        AMQPError, ConnectionError: the connection was lost, or the broker refuses.
    """
    check_count(limit, "limit")
    async with _channel_of_ours(channel) as wire:
        taken = _Taken(wire, queue)
        letters = [letter_of(message) async for message in taken.messages(limit)]
    return DeadLetters(tuple(letters), taken.total)


async def replay(
    channel: AbstractChannel,
    queue: str,
    *,
    keys: Iterable[str] | None = None,
    limit: int | None = None,
    to: str | None = None,
    dry_run: bool = False,
    on_letter: Callable[[int], object] = lambda total: None,
) -> Replay:
    """Send dead letters back to the queue that each came from, oldest first; the others stay in their queue.

    A copy is published and confirmed before its dead letter is acknowledged. So nothing is lost if this ends early;
    a letter that is sent back twice is one message for the consumer, by its key. The attempts begin anew. A message
    that fails again is a dead letter again, which this call does not take once more.

    Args:
        channel: an open channel of aio-pika; another one is opened on its connection.
        queue: the queue of the dead letters, such as `orders.dead`.
        keys: the keys of those to send back; None for all, except those that lack headers of their message.
        limit: the most letters to send back.
        to: the queue to send them to, instead of the one that each came from.
        dry_run: only count them.
        on_letter: called after each letter, with their number.

    Raises:
        ConfigError: there is no such queue.
        AMQPError, ConnectionError: the connection was lost, or the broker refuses.
    """
    check_count(1 if limit is None else limit, "limit")
    check_flag(dry_run, "dry_run")
    report, chosen = Replay(), None if keys is None else {keys} if isinstance(keys, str) else {*keys}
    async with _channel_of_ours(channel) as wire:
        taken = _Taken(wire, queue)
        async for message in taken.messages():
            report.seen += 1
            letter = letter_of(message)
            if chosen is None and LEFT_OUT in message.headers:
                report.kept[f"headers of its message were left out, see its {LEFT_OUT}: name its key"] += 1
            elif chosen is None or letter.key in chosen:
                await _send_back(message, letter, to or letter.queue, report, dry_run)
            on_letter(taken.total)
            if report.replayed == limit:
                break
    return report


async def _send_back(
    message: IncomingMessage, letter: DeadLetter, to: str | None, report: Replay, dry_run: bool
) -> None:
    if to is None:
        report.kept["the dead letter does not say which queue it came from"] += 1
        return
    if not dry_run:
        headers = {
            name: value for name, value in again_headers(message.headers).items() if name not in DEATHS
        }
        try:
            await publish_copy(message, "", to, headers)
        except (UnroutableError, RefusedError, HeadersTooLargeError) as error:
            report.kept[str(error)] += 1
            return
        await reply(message.ack())
    report.replayed += 1
    if letter.key is not None:
        report.keys.add(letter.key)


@asynccontextmanager
async def _channel_of_ours(channel: AbstractChannel) -> AsyncIterator[Wire]:
    """Yield a channel to take messages by. Afterwards give back the messages without an ack.

    One message is published at a time on it: aiormq takes a returned one for another that has the same message id.
    """
    underlay = await reply(channel.get_underlay_channel())
    wire = await reply(underlay.connection.channel())
    try:
        yield wire
    finally:
        with anyio.move_on_after(GOODBYE, shield=True):
            await _give_back(wire)


async def _give_back(wire: Wire) -> None:
    """Give back with a nack, because RabbitMQ 4.3 counts messages of a closed channel as failed deliveries."""
    if not wire.is_closed:
        await reply(wire.basic_nack(0, multiple=True, requeue=True))  # 0: every message without an ack
        await reply(wire.close())


class _Taken:
    """Takes the messages that are in a queue at the start, and no later ones: a replayed one may soon be back."""

    def __init__(self, wire: Wire, queue: str) -> None:
        self._wire = wire
        self._queue = queue
        # Mutable: how many there were, from the first message: the queue's own figure may be ahead of the returns.
        self.total = 0

    async def messages(self, limit: int | None = None) -> AsyncIterator[IncomingMessage]:
        """Yield each, unacknowledged, the oldest first.

        Raises:
            ConfigError: there is no such queue.
        """
        seen = 0
        while seen != limit and (seen == 0 or seen < self.total):
            message = await self._next()
            if message is None:  # another program has taken the rest
                return
            if seen == 0:
                self.total = 1 + (message.message_count or 0)
            seen += 1
            yield message

    async def _next(self) -> IncomingMessage | None:
        try:
            delivered = await reply(self._wire.basic_get(self._queue))
        except ChannelNotFoundEntity:
            raise ConfigError(
                f"there is no queue {self._queue!r}: dead letters of the queue orders are in orders.dead, or in the "
                "queue to which the consumer's dead_letter= routes them"
            ) from None
        if isinstance(delivered.delivery, spec.Basic.GetEmpty):
            return None
        message = IncomingMessage(delivered)
        restore_origin(message)
        return message


def letter_of(message: IncomingMessage) -> DeadLetter:
    """Return the data of a dead letter."""
    headers = message.headers
    ours = REASON in headers
    return DeadLetter(
        key=text_of(headers.get(KEY)) or message.message_id,
        attempts=attempts_of(headers, None),
        reason=text_of(headers.get(REASON if ours else "x-first-death-reason")),
        error=text_of(headers.get(ERROR)) or None,
        consumer=text_of(headers.get(CONSUMER)),
        queue=text_of(headers.get(QUEUE if ours else "x-first-death-queue")),
        at=text_of(headers.get(AT)) if ours else _time_of_death(headers),
        size=len(message.body),
    )


def _time_of_death(headers: Mapping[str, Any]) -> str | None:
    """Return the first time at which the broker gave the message up."""
    deaths = headers.get("x-death")
    last = deaths[-1] if isinstance(deaths, list) and deaths else None
    time = last.get("time") if isinstance(last, dict) else None
    return time.isoformat() if isinstance(time, datetime) else None
