"""The two places beside a queue: one for messages that wait for their next attempt, and one for dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

import anyio
from aio_pika import IncomingMessage
from aio_pika.abc import AbstractIncomingMessage, AbstractQueue
from aiormq import spec
from aiormq.abc import AbstractChannel
from aiormq.exceptions import ChannelNotFoundEntity, ChannelPreconditionFailed, DeliveryError, PublishError

from ...checks import Seconds, check_count, check_flag, check_place, milliseconds
from ...errors import ConfigError, DedupError
from ...log_throttle import LogThrottle
from ...messages.decisions import Decision, log
from ...messages.headers import QUEUE, retry_headers
from ...messages.room import Letter, lay
from .replies import LOST, reply

_EXCHANGE: Final = "x-fastdedup-exchange"
_ROUTING_KEY: Final = "x-fastdedup-routing-key"
"""The first place that a message was published to: a retried one comes back through the default exchange."""
_NO_ID: Final = "x-fastdedup-no-message-id"
"""The message was published without an id. aiormq invents one for each copy, and that must never become a key."""
_CC: Final = "x-fastdedup-cc"
"""The header CC of a message. RabbitMQ would publish each copy that has it to the queues named there, too."""
_TYPE: Final = "x-queue-type"
_LIMIT: Final = "x-delivery-limit"
_TIMEOUT: Final = "x-consumer-timeout"
_USUAL_TIMEOUT: Final = 1800.0
"""Seconds that RabbitMQ waits for an ack by default, until it closes the channel. A queue's argument may change
that, or a policy or the server's own settings, which no client can see."""
DEATHS: Final = ("x-death", "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason")
"""RabbitMQ's own record of the wait for a retry; with it RabbitMQ takes the next wait for a cycle, and drops it."""
_MANY: Final = 1_000_000_000
"""Deliveries of a dead letter: each look at it is one, and RabbitMQ 4.0 drops it from a quorum queue after 20."""
_PERSISTENT: Final = 2
_OTHER_PROPERTIES: Final = 2200
"""The most bytes of a content header without its table of headers: eight texts of up to 256, and what frames them."""
_FRAME: Final = 20
"""Bytes of a content header's frame around its properties."""
_MADE_UP_ID: Final = 33
"""Bytes of the message id that aiormq invents."""
_LOCKS: WeakKeyDictionary[AbstractChannel, dict[str, anyio.Lock]] = WeakKeyDictionary()
"""Held while a message of an id is published on a channel."""


class UnroutableError(ConfigError):
    """The broker has no place for a retry or a dead letter: its queue, or the exchange's binding, was removed."""


class RefusedError(DedupError):
    """The broker has refused a message for now: its queue is full."""


class HeadersTooLargeError(DedupError):
    """The headers do not fit into one frame of AMQP: the broker would close the connection."""


class Places:
    """The queue for retries, and the exchange or queue for dead letters, of one queue.

    A retry waits in a queue of its own, whose messages expire after `retry_delay` seconds and are routed back by the
    broker: no plugin is needed. That queue's name ends in its delay, because a queue's TTL cannot be changed.

    Args:
        queue: the consumer's queue.
        retry_delay: seconds until a message is delivered again.
        dead_letter: an exchange that dead letters are published to, by the queue's name as routing key; by default
            they go to the queue `<queue>.dead`.
        declare: make the two places, if they do not exist yet.
        attempts: how often the handler is begun for a message.

    Raises:
        ConfigError: the queue cannot be consumed from in this way.
    """

    def __init__(
        self,
        queue: AbstractQueue,
        *,
        retry_delay: Seconds,
        dead_letter: str | None,
        declare: bool,
        attempts: int,
    ) -> None:
        # The default exchange, "", would give a dead letter back to its own queue.
        if dead_letter is not None:
            what = f"the name of an exchange (without it dead letters go to the queue {queue.name}.dead)"
            check_place(dead_letter, "dead_letter", what)
        self._arguments: Mapping[str, Any] = queue.arguments or {}
        check_queue(queue.name, self._arguments, check_count(attempts, "attempts"))
        self.queue = queue.name
        self._delay_ms = milliseconds(retry_delay, "retry_delay")
        self.retries = f"{queue.name}.retry.{self._delay_ms}ms"
        self.exchange = dead_letter or ""
        self.dead_letters = f"{queue.name}.dead" if dead_letter is None else queue.name
        self._declare = check_flag(declare, "declare")
        self._losses, self._unput = LogThrottle(), LogThrottle()

    async def open(self, queue: AbstractQueue) -> None:
        """Make the places, or check that they exist.

        Raises:
            ConfigError: one of them does not exist, or is another kind of queue.
        """
        underlay = await reply(queue.channel.get_underlay_channel())
        await self._place(underlay, self.retries, self._retry_arguments())
        if self.exchange:
            await self._see_exchange(underlay)
        else:
            await self._place(underlay, self.dead_letters, self._dead_letter_arguments())

    async def retry(self, message: AbstractIncomingMessage, decision: Decision, consumer: str) -> bool:
        """Put a copy of a message into its waiting queue; return once the broker has confirmed it.

        False if the queue is full, or if the copy's headers would not fit: the handler needs those of the message,
        and fastdedup its own.

        Raises:
            ChannelInvalidStateError, ConnectionError: the channel was lost: the broker delivers the message again.
            UnroutableError: the waiting queue no longer exists.
        """
        headers = {name: value for name, value in message.headers.items() if name not in DEATHS}
        headers = _with_origin(retry_headers(headers, decision, consumer), message)
        try:
            await self._publish(message, "", self.retries, headers, message.expiration)
        except (HeadersTooLargeError, RefusedError) as error:
            if self._unput.passes():
                log.warning(
                    "%s: it is held in %r, and not put there, until its next attempt", error, self.queue
                )
            return False
        return True

    async def bury(self, message: AbstractIncomingMessage, decision: Decision, consumer: str) -> None:
        """Publish a copy of a message as a dead letter, with as many headers as fit. Errors: see `retry`."""
        is_direct = not message.exchange and message.routing_key == self.queue  # a replay goes there too
        spare = (*DEATHS, _EXCHANGE, _ROUTING_KEY) if is_direct else DEATHS
        await lay(
            Letter(_with_origin(message.headers, message).items(), {QUEUE: self.queue}, spare=spare),
            decision,
            consumer,
            lambda some: self._publish(message, self.exchange, self.dead_letters, dict(some), None),
            is_too_large,
        )

    async def _publish(
        self,
        message: AbstractIncomingMessage,
        exchange: str,
        routing_key: str,
        headers: dict[str, Any],
        expiration: Any,
    ) -> None:
        try:
            await publish_copy(message, exchange, routing_key, headers, expiration)
        except LOST as error:  # the message is delivered again; if its copy was the cause, this repeats
            if self._losses.passes():
                log.warning("the channel was lost as a copy was published for %r: %s", routing_key, error)
            raise

    def _kind(self) -> dict[str, Any]:
        return {_TYPE: self._arguments[_TYPE]} if _TYPE in self._arguments else {}

    def _dead_letter_arguments(self) -> dict[str, Any]:
        arguments = self._kind()
        return arguments | {_LIMIT: _MANY} if arguments.get(_TYPE) == "quorum" else arguments

    def _retry_arguments(self) -> dict[str, Any]:
        arguments = {
            **self._kind(),
            "x-message-ttl": self._delay_ms,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": self.queue,
        }
        if arguments.get(_TYPE) == "quorum":
            # Otherwise a broker that is killed while it moves an expired message back may lose it.
            arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
        return arguments

    async def _place(self, underlay: AbstractChannel, name: str, arguments: dict[str, Any]) -> None:
        """Make a queue, or check that it exists; on a channel of its own, because an error closes it."""
        channel = await reply(underlay.connection.channel())
        try:
            await reply(
                channel.queue_declare(name, passive=not self._declare, durable=True, arguments=arguments)
            )
        except ChannelNotFoundEntity:
            raise ConfigError(
                f"there is no queue {name!r}: give declare=True, or declare it, durable, with arguments={arguments}"
            ) from None
        except ChannelPreconditionFailed as error:
            raise ConfigError(
                f"the queue {name!r} was declared in another way: delete it, or give declare=False ({error})"
            ) from None
        finally:
            await _close(channel)

    async def _see_exchange(self, underlay: AbstractChannel) -> None:
        channel = await reply(underlay.connection.channel())
        try:
            await reply(channel.exchange_declare(self.exchange, passive=True))
        except ChannelNotFoundEntity:
            raise ConfigError(
                f"there is no exchange {self.exchange!r} for dead letters: declare it, and bind a queue to it by the "
                f"routing key {self.dead_letters!r}; without dead_letter= they go to the queue {self.queue}.dead"
            ) from None
        finally:
            await _close(channel)


def _with_origin(headers: Mapping[str, Any], message: AbstractIncomingMessage) -> dict[str, Any]:
    """Return headers of a copy that name the place to which its message was published first."""
    return {_EXCHANGE: message.exchange or "", _ROUTING_KEY: message.routing_key or "", **headers}


def restore_origin(message: AbstractIncomingMessage) -> None:
    """Give a message that comes back its published values: its exchange, its routing key, an id or none."""
    headers, incoming = message.headers, cast(IncomingMessage, message)
    if _CC in headers:
        headers["CC"] = headers.pop(_CC)
    if _NO_ID in headers:
        incoming.message_id = None
    if _EXCHANGE in headers and _ROUTING_KEY in headers:
        incoming.exchange = str(headers[_EXCHANGE])
        incoming.routing_key = str(headers[_ROUTING_KEY])


def check_queue(name: str, arguments: Mapping[str, Any], attempts: int) -> None:
    """Raise ConfigError if a queue keeps its messages after an ack, or gives one up before its last attempt."""
    if arguments.get(_TYPE) == "stream":
        raise ConfigError(
            f"{name!r} is a stream, which keeps its messages after an ack: consume from a queue"
        )
    limit = arguments.get(_LIMIT)
    if isinstance(limit, int) and limit < attempts:
        raise ConfigError(
            f"the queue {name!r} gives a message up after {limit} deliveries ({_LIMIT}), before its {attempts} "
            f"attempts: declare it with at least {attempts}, or give attempts={max(limit, 1)}"
        )


def ack_timeout(arguments: Mapping[str, Any]) -> float | None:
    """Return how many seconds the broker waits for an ack by a queue's own argument; None if it has none."""
    found = arguments.get(_TIMEOUT)
    return found / 1000 if isinstance(found, int) else None


def patience(arguments: Mapping[str, Any]) -> float:
    """Return how many seconds the broker waits for an ack: by a queue's own argument, or by default."""
    timeout = ack_timeout(arguments)
    return _USUAL_TIMEOUT if timeout is None else timeout


def check_hold(name: str, arguments: Mapping[str, Any], held: float, setting: str) -> None:
    """Raise ConfigError if a message is held for longer than the broker waits for its ack.

    Args:
        name: the queue's.
        arguments: the arguments of its declaration.
        held: seconds for which a message is held while another delivery of it is at work.
        setting: the setting of that time.
    """
    limit = patience(arguments)
    if held >= limit:
        usual = ", by default" if ack_timeout(arguments) is None else ""
        raise ConfigError(
            f"a message of {name!r} may be held for {held:.15g} s ({setting}), and the broker closes the channel of "
            f"one that is not acknowledged for {limit:.15g} s{usual}: give a shorter {setting}, or declare the "
            f"queue with a longer {_TIMEOUT} (in milliseconds)"
        )


async def publish_copy(
    message: AbstractIncomingMessage,
    exchange: str,
    routing_key: str,
    headers: dict[str, Any],
    expiration: Any = None,
) -> None:
    """Publish a copy on the channel that the message came by, so that a lost one is noticed.

    Returns once the broker has confirmed it.

    Raises:
        UnroutableError: no queue takes it.
        RefusedError: the queue is full.
        HeadersTooLargeError: nothing was published.
        ChannelInvalidStateError, ConnectionError: the channel was lost.
    """
    place = f"{exchange!r} by {routing_key!r}" if exchange else f"the queue {routing_key!r}"
    unroutable = UnroutableError(f"no queue takes the messages for {place}: declare or bind it again")
    properties = _properties(message, headers, expiration)
    if not fits_into_frame(properties, message.channel):
        raise HeadersTooLargeError(f"the headers of a message for {place} do not fit into a frame")
    try:
        async with _alone(message.channel, message.message_id):
            publishing = message.channel.basic_publish(
                message.body,
                exchange=exchange,
                routing_key=routing_key,
                properties=properties,
                mandatory=True,
            )
            answer = await reply(publishing)
    except PublishError:  # a returned message, on a channel whose on_return_raises is true
        raise unroutable from None
    except ChannelNotFoundEntity as missing:
        if f"no exchange '{exchange}'" in str(missing):
            raise unroutable from None
        raise  # the error of another call on this channel
    except DeliveryError as refused:
        raise RefusedError(f"{place} refuses a message: {refused}") from None
    if not isinstance(answer, spec.Basic.Ack):
        raise unroutable


def is_too_large(error: Exception) -> bool:
    """True if a copy was not published because of the size of its headers."""
    return isinstance(error, HeadersTooLargeError)


def fits_into_frame(properties: spec.Basic.Properties, channel: AbstractChannel) -> bool:
    """True if properties fit into one frame of a connection: AMQP splits a body, but not them."""
    limit = channel.connection.connection_tune.frame_max
    if not limit:  # 0: any size
        return True
    # No value takes more than 4 bytes for a character of its repr, which takes a tenth of the time of encoding.
    if 4 * len(repr(properties.headers)) + _OTHER_PROPERTIES <= limit:
        return True
    made_up = 0 if properties.message_id else _MADE_UP_ID
    return _FRAME + len(properties.marshal()) + made_up <= limit


@asynccontextmanager
async def _alone(channel: AbstractChannel, message_id: str | None) -> AsyncIterator[None]:
    """Let one message of an id be published at a time.

    aiormq recognizes a returned message by its id: if two are under way, it would count the other as confirmed.
    """
    if not message_id:  # then aiormq invents one for each
        yield
        return
    locks = _LOCKS.setdefault(channel, {})
    lock = locks.setdefault(message_id, anyio.Lock())
    try:
        async with lock:
            yield
    finally:
        if not lock.locked():
            locks.pop(message_id, None)


def _properties(
    message: AbstractIncomingMessage, headers: dict[str, Any], expiration: Any
) -> spec.Basic.Properties:
    if not message.message_id:
        headers = headers | {_NO_ID: 1}
    if "CC" in headers:
        headers = {_CC if name == "CC" else name: value for name, value in headers.items()}
    return spec.Basic.Properties(
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        headers=headers,
        delivery_mode=_PERSISTENT,
        priority=message.priority,
        correlation_id=message.correlation_id,
        reply_to=message.reply_to,
        expiration=None if expiration is None else str(round(expiration * 1000)),
        message_id=message.message_id,
        timestamp=message.timestamp,
        message_type=message.type,
        app_id=message.app_id,
    )  # no user_id: the broker refuses any other than the connection's own


async def _close(channel: AbstractChannel) -> None:
    if not channel.is_closed:
        await reply(channel.close())
