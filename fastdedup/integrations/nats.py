"""NATS JetStream with nats-py: a consumer whose handler does its work once for each message.

    subscription = await js.pull_subscribe("orders", durable="billing")
    async with Consumer(subscription, dedup, key=message_id) as consumer:
        await consumer.run(on_order)

Main path: `Consumer.run` → `fetch` → `Deliveries.handle` → ack, nak with a delay, or term.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Unpack

from ..extras import needs

with needs(__name__, "nats-py", "'fastdedup[nats]'"):
    import anyio
    from nats.aio.msg import Msg
    from nats.errors import ConnectionClosedError, Error, MaxPayloadError, NoRespondersError
    from nats.js import JetStreamContext
    from nats.js.api import AckPolicy, ConsumerConfig, Header, RetentionPolicy
    from nats.js.errors import NotFoundError, ServiceUnavailableError

from ..checks import check_place
from ..errors import ConfigError
from ..gateway import Dedup
from ..messages.consumer import MessageJob
from ..messages.decisions import Action, Decision, log
from ..messages.headers import KEY, ORIGIN
from ..messages.keys import KeyRule, body_digest, header, place_in_stream
from ..messages.pulling import PullingConsumer
from ..messages.room import Headers, Letter, lay
from ..messages.rules import DeadLetterError
from ..messages.settings import ConsumerSettings

LIMIT: Final = 256
"""Messages in hand at once, by default."""
MESSAGE_ID: Final = "Nats-Msg-Id"
"""The header by which JetStream itself drops a message that is published twice in its duplicate window."""
_OF_STREAM: Final = f"{Msg.Ack.Prefix0}.{Msg.Ack.Prefix1}."
"""The beginning of the reply subject of each message of a stream. A status that the server sends has none of it."""
_BREAKS: Final = re.compile("[\r\n]+")
_OF_NATS: Final = "nats-"
"""Headers with this beginning tell the server what to do with a message that is published."""
_FETCH: Final = 1.0
"""Seconds that a fetch waits for messages: `stop` waits for it at most as long."""
_EMPTY_PAUSE: Final = 0.01
_ACK_WAIT: Final = 30.0
"""Seconds that JetStream waits for an ack, by default."""
_HEADERS: Final = len("NATS/1.0\r\n\r\n")
_LINE: Final = len(": \r\n")
"""Bytes around all headers of a message, and in each one."""
_TOO_LARGE: Final = frozenset((10054, 10097))
"""JetStream's codes for a message that exceeds its stream's `max_msg_size`, and for headers of more than 64 kB."""

__all__ = ["Consumer", "DeadLetterError", "body", "header", "message_id", "sequence"]


def message_id(message: Msg) -> str | None:
    """Return the header `Nats-Msg-Id`, which the publisher has set."""
    return (message.headers or {}).get(MESSAGE_ID)


def sequence(message: Msg) -> str:
    """Return the message's stream, its sequence there, and its time, because a stream made again begins at 1.

    A redelivery has the same. A message that its publisher sends again has others: then use `message_id`.
    """
    metadata = message.metadata
    return place_in_stream(metadata.stream, metadata.sequence.stream, metadata.timestamp)


def body(message: Msg) -> str:
    """Return a digest of the message's data.

    Two orders with equal data are one order then: choose it only if the data name their event, by a time or a
    number.
    """
    return body_digest(message.data)


class Consumer(PullingConsumer[Msg]):
    """Consumes a pull subscription; the handler's work is done once for each message.

    Use it as an async context manager, and call `run` in it. A message is acknowledged when it is done, delivered
    again after `retry_delay` seconds if it was not, and becomes a dead letter after `attempts`. While it is in
    hand, the server gets progress messages, so `ack_wait` does not run out.

    Args:
        subscription: the result of `js.pull_subscribe`.
        dedup: the gate, open before the consumer runs; None if an inbox decides alone.
        key: a function of the message: `message_id`, `header("order-id")`, `sequence`, or your own.
        dead_letter: a subject of another stream for dead letters. By default a dead letter is logged, and stays in
            its stream.
        limit: messages in hand at once.
        settings: those that all consumers have, see `fastdedup.messages.settings.ConsumerSettings`: inbox, begin,
            remember, resolve, name, wait, attempts, retry_delay, lease, fingerprint, grace.

    Raises:
        ConfigError: a setting is wrong; the message names it.
    """

    def __init__(
        self,
        subscription: JetStreamContext.PullSubscription,
        dedup: Dedup | None,
        *,
        key: KeyRule,
        dead_letter: str | None = None,
        limit: int = LIMIT,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        if not isinstance(subscription, JetStreamContext.PullSubscription):
            raise ConfigError(
                f"subscription must be of js.pull_subscribe(…), got {type(subscription).__name__}"
            )
        super().__init__(subscription._consumer, dedup, key, settings, limit=limit)
        self._dead_letter = (
            None if dead_letter is None else check_place(dead_letter, "dead_letter", "a subject")
        )
        self._is_named = settings.get("name") is not None
        self._subscription = subscription
        self._jetstream = subscription._js
        # Mutable: whether JetStream did not answer the last request.
        self._is_away = False

    async def _open(self) -> None:
        _Incoming.replace_queue(self._subscription._sub)
        info = await self._subscription.consumer_info()
        assert info.config is not None
        _check_config(info.name, info.config, self._is_named)
        waits, setting = redelivers_after(info.config)
        self._deliveries.check_memory(max(waits), setting)
        self._sign_after = min(waits) / 3
        await self._see_dead_letters(info.stream_name)

    async def _see_dead_letters(self, stream: str) -> None:
        """Raise ConfigError unless dead letters have a place."""
        if self._dead_letter is None:
            retention = (await self._jetstream.stream_info(stream)).config.retention
            if retention != RetentionPolicy.LIMITS:
                raise ConfigError(
                    f"the stream {stream!r} deletes what is settled: give dead_letter=, a subject of another stream"
                )
            return
        try:
            place = await self._jetstream.find_stream_name_by_subject(self._dead_letter)
        except NotFoundError:
            raise ConfigError(
                f"no stream has the subject {self._dead_letter!r} for dead letters: add one, js.add_stream(…)"
            ) from None
        if place == stream:
            raise ConfigError(
                f"dead_letter must be a subject of another stream than {stream!r}, got {self._dead_letter!r}"
            )

    async def _take(self, room: int) -> Sequence[Msg]:
        if self._is_away:
            await self._subscription.consumer_info()  # raises NotFoundError if it was deleted
            self._is_away = False
        try:
            return await self._subscription.fetch(room, timeout=_FETCH)
        except TimeoutError:
            await anyio.sleep(_EMPTY_PAUSE)  # the server may answer at once that it has no message
        return ()

    def _outage_of(self, error: Exception) -> str | None:
        self._is_away = isinstance(error, ServiceUnavailableError | NoRespondersError) or (
            self._is_away and isinstance(error, TimeoutError)
        )
        return f"JetStream does not answer: {error}" if self._is_away else None

    async def _keep(self, messages: Sequence[Msg]) -> None:
        for message in messages:
            with suppress(Error):
                await message.in_progress()

    async def _work_on(self, job: MessageJob[Msg]) -> None:
        message = job.message
        decision = await self._decide(job, message.headers or {}, message.metadata.num_delivered)
        try:
            await self._tell(message, decision)
        except ConnectionClosedError:
            raise
        except Error as error:
            log.warning("consumer %r: a message is delivered again: its ack failed: %s", self.name, error)

    async def _tell(self, message: Msg, decision: Decision) -> None:
        if decision.action is Action.ACK:
            await message.ack()
        elif decision.action is Action.RETRY:
            await message.nak(delay=self._retry_delay)
        else:
            await message.term()

    async def _give_back(self, job: MessageJob[Msg]) -> None:
        with suppress(Error):
            await job.message.nak()

    async def _lay(self, message: Msg, decision: Decision) -> None:
        place = f"{message.metadata.stream}:{message.metadata.sequence.stream}"
        given = message.headers or {}
        theirs = [pair for pair in given.items() if not pair[0].lower().startswith(_OF_NATS)]
        # The copy has another id, so only KEY still has the message's own.
        letter = Letter(theirs, {ORIGIN: place}, needed=(KEY,) if MESSAGE_ID in given else ())
        publish = None if self._dead_letter is None else partial(self._publish, self._dead_letter, message)
        await lay(letter, decision, self.name, publish, is_too_large)

    async def _publish(self, subject: str, message: Msg, headers: Headers) -> None:
        lines = {name: _BREAKS.sub(" ", str(value)) for name, value in headers}
        # Not the publisher's id: the server would drop another consumer's dead letter with it, or a later one.
        lines[MESSAGE_ID] = f"dead:{self.name}:{sequence(message)}"
        check_size(self._jetstream._nc, message.data, lines)
        await self._jetstream.publish(subject, message.data, headers=lines)


def redelivers_after(config: ConsumerConfig) -> tuple[list[float], str]:
    """Return the seconds until JetStream delivers a message again, of each delivery, and the setting's name."""
    if config.backoff:
        return config.backoff, "backoff"
    return [config.ack_wait or _ACK_WAIT], "ack_wait"


class _OwnHeaders(dict[str, str]):
    """The headers of a message of a stream that has a header `Status` of its own.

    nats-py would take the message for a status of the server, by `get` with its own enum: the message would end the
    consumer, or never be seen. A program that asks by text gets the value.
    """

    def get(self, name: str, default: Any = None) -> Any:
        return default if name is Header.STATUS else super().get(name, default)


class _Incoming(asyncio.Queue[Msg]):
    """What nats-py has received for a subscription, and `fetch` takes."""

    def _put(self, item: Msg) -> None:
        if item.headers and Header.STATUS in item.headers and item.reply.startswith(_OF_STREAM):
            item.headers = _OwnHeaders(item.headers)
        super()._put(item)

    @classmethod
    def replace_queue(cls, subscription: Any) -> None:
        """Let a subscription have such a queue, with the messages that it holds."""
        before = subscription._pending_queue
        subscription._pending_queue = queue = cls(before.maxsize)
        while not before.empty():
            queue.put_nowait(before.get_nowait())


def check_size(connection: Any, data: bytes, headers: Mapping[str, str]) -> None:
    """Raise MaxPayloadError if a server would close the connection for it: nats-py only looks at the data."""
    lines = sum(len(name.encode()) + len(value.encode()) + _LINE for name, value in headers.items())
    size, limit = len(data) + lines + _HEADERS, connection.max_payload
    if size > limit:
        raise MaxPayloadError(f"{size} bytes with its headers, and the server takes {limit}")


def is_too_large(error: Exception) -> bool:
    """True if a message is larger than the server, JetStream or its stream takes."""
    return isinstance(error, MaxPayloadError) or getattr(error, "err_code", None) in _TOO_LARGE


def _check_config(name: str, config: ConsumerConfig, is_named: bool) -> None:
    """Raise ConfigError unless the name lasts, and the server leaves acks and the number of attempts to fastdedup."""
    if config.durable_name is None and not is_named:
        raise ConfigError(
            f"the consumer {name!r} is not durable, so its name is another one each time, and no message is known "
            "again: give pull_subscribe durable=, or the Consumer a name="
        )
    if config.ack_policy != AckPolicy.EXPLICIT:  # the server sends it as text
        raise ConfigError(
            f"the consumer {name!r} must be acknowledged message by message: make it with ack_policy=explicit"
        )
    if config.max_deliver not in (None, -1):
        raise ConfigError(
            f"the consumer {name!r} gives a message up after {config.max_deliver} deliveries (max_deliver), and "
            "leaves no dead letter: make it without max_deliver, because attempts= counts"
        )
