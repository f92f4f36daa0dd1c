"""`Consumer`: takes a queue's messages, and settles each at the broker."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Unpack, cast

import anyio
from aio_pika import IncomingMessage
from aio_pika.abc import AbstractIncomingMessage, AbstractMessage, AbstractQueue, AbstractRobustChannel
from aiormq.abc import AbstractChannel, ChannelFrame, DeliveredMessage
from anyio.abc import TaskGroup

from ...checks import check_count
from ...errors import ConfigError
from ...gateway import Dedup
from ...messages.consumer import ConsumerLife
from ...messages.decisions import Action, Decision
from ...messages.delivery import take_back_cancels
from ...messages.handout import Handout
from ...messages.headers import attempts_of, is_again
from ...messages.settings import ConsumerSettings
from .places import Places, ack_timeout, check_hold, patience, restore_origin
from .replies import LOST, reply

KeyRule = Callable[[AbstractIncomingMessage], str | None]
Handler = Callable[..., Coroutine[Any, Any, Any]]
PREFETCH: Final = 256
"""Messages that the broker sends ahead of their acks, by default: their claims share batches."""
_GOODBYE: Final = 5.0
"""Seconds to give messages back when the consumer ends. The broker also takes them back by itself."""
_LOOK: Final = 1.0
"""Seconds between two looks whether the broker still delivers."""
log = logging.getLogger("fastdedup.messages")

_ACK: Final = struct.Struct(">BHIHHQBB")
"""A frame of AMQP 0-9-1: kind, channel, size, class, method, delivery tag, flags, end."""
_METHOD, _SIZE, _BASIC, _BASIC_ACK, _END = 1, 13, 60, 80, 0xCE
_PROCESSED: Final = "_IncomingMessage__processed"
"""The attribute with which aio-pika refuses to settle a message twice."""


def message_id(message: AbstractMessage) -> str | None:
    """Return the property `message_id`, which the publisher has set.

    aio-pika sends a random one if its publisher sets none: then a message that is published again has another id.
    """
    return message.message_id


class Acks:
    """The finished messages of one consumer whose acks are not sent yet: all of a turn of the loop go in one write.

    aiormq's own ack is a write to the socket, a future and two turns of the loop for each message: a third of the
    cost of a bare consumer.
    """

    def __init__(self, consumer: str) -> None:
        self._consumer = consumer
        # Mutable: the acks to write, by the channel that the messages came by, and an event: there are some.
        self._waiting: dict[AbstractChannel, list[bytes]] = {}
        self._something = anyio.Event()

    def add(self, message: IncomingMessage) -> None:
        """Acknowledge a message soon.

        Raises:
            ChannelInvalidStateError: its channel is closed: the broker delivers it again.
        """
        channel: Any = message.channel
        frame = _ACK.pack(
            _METHOD, channel.number, _SIZE, _BASIC, _BASIC_ACK, message.delivery_tag or 0, 0, _END
        )
        setattr(message, _PROCESSED, True)
        waiting = self._waiting.get(channel)
        if waiting is not None:
            waiting.append(frame)
            return
        self._waiting[channel] = [frame]
        self._something.set()

    async def run(self) -> None:
        """Write the added acks, until cancelled."""
        while True:
            await self._something.wait()
            self._something = anyio.Event()
            await self.flush()

    async def flush(self) -> None:
        """Write the acks that were added so far; return once they have left this process."""
        waiting, self._waiting = self._waiting, {}
        for channel, frames in waiting.items():
            try:
                await reply(_write(channel, b"".join(frames)))
            except LOST as error:
                log.info("consumer %r: the channel of a message was lost: %s", self._consumer, error)


async def _write(channel: Any, payload: bytes) -> None:
    if channel.is_closed:
        return
    written = channel.create_future()
    await channel.write_queue.put(ChannelFrame(payload=payload, should_close=False, drain_future=written))
    await written


class Consumer(ConsumerLife):
    """Consumes a queue; the handler's work is done once for each message, for any number of deliveries.

    Use it as an async context manager, and call `run` in it. A message is acknowledged when it is done, waits
    `retry_delay` seconds if it was not, and becomes a dead letter after `attempts`. It is held unacknowledged
    while another delivery of it is at work, and while Redis (without an inbox) or the database (with one) does not
    answer.

    Args:
        queue: an aio-pika queue; on a robust connection the consumer goes on after a lost connection.
        dedup: the gate, open before the consumer runs; None if an inbox decides alone.
        key: a function of the message: `message_id`, `header("order-id")`, or your own.
        dead_letter: an exchange for dead letters; by default they go to the queue `<queue>.dead`.
        declare: make the queues for retries and dead letters, if they do not exist yet.
        prefetch: messages that the broker sends ahead of their acks, and handlers at work at once.
        settings: those that all consumers have, see `fastdedup.messages.settings.ConsumerSettings`: inbox, begin,
            remember, resolve, name, wait, attempts, retry_delay, lease, fingerprint, grace.

    Raises:
        ConfigError: a setting is wrong; the message names it.
    """

    def __init__(
        self,
        queue: AbstractQueue,
        dedup: Dedup | None,
        *,
        key: KeyRule,
        dead_letter: str | None = None,
        declare: bool = False,
        prefetch: int = PREFETCH,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        if not isinstance(queue, AbstractQueue):
            raise ConfigError(
                f"queue must be an aio_pika queue, got {type(queue).__name__}: await channel.declare_queue(…)"
            )
        super().__init__(queue.name, dedup, key, settings)
        rules = self._deliveries.rules
        self._places = Places(
            queue,
            retry_delay=rules.retry_delay,
            dead_letter=dead_letter,
            declare=declare,
            attempts=rules.attempts,
        )
        check_hold(queue.name, queue.arguments or {}, rules.wait, "wait")
        if timeout := ack_timeout(queue.arguments or {}):
            self._deliveries.check_memory(timeout, "x-consumer-timeout")
        # For a message that is held for its next attempts: all holds together end before the broker's ack timeout.
        self._pause = min(rules.retry_delay, patience(queue.arguments or {}) / (2 * rules.attempts))
        self._queue = queue
        self._prefetch = check_count(prefetch, "prefetch", most=0xFFFF)  # AMQP has 16 bits for it
        self._acks = Acks(self.name)
        # Mutable: deliveries in hand, by their ids, and the waiter for their end; those that go back.
        self._in_hand: dict[int, AbstractIncomingMessage] = {}
        self._idle = anyio.Event()
        self._late: list[AbstractIncomingMessage] = []

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r} of {self._queue.name!r}>"

    async def _open(self) -> None:
        if not getattr(self._queue.channel, "publisher_confirms", True):
            raise ConfigError(
                "the queue's channel must confirm what is published: open it without publisher_confirms=False"
            )
        await self._places.open(self._queue)

    async def run(self, handler: Handler) -> None:
        """Consume until `stop` is called.

        Raises:
            ConfigError: the handler is not async; the gate or the inbox is set up wrongly.
            ConnectionError: the connection was lost, or the queue deleted; a robust connection opens both again.
            RuntimeError: one of its own tasks was cancelled, and not `run`.
        """
        self._checked(handler)
        with self._at_work():
            await self._live(handler)

    async def _live(self, handler: Handler) -> None:
        """Consume until `stop` is called; end the begun work, and raise the error that ended it."""
        channel = self._queue.channel
        await reply(channel.set_qos(prefetch_count=self._prefetch))
        if not isinstance(channel, AbstractRobustChannel):
            channel.close_callbacks.add(self._on_close)
        handout = Handout[AbstractIncomingMessage]()
        # Before the group, because a group would wrap the error of a connection that is lost now.
        underlay = await channel.get_underlay_channel()
        tag = await reply(self._queue.consume(self._taker(handout)))
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._guarded, self._acks.run)
                for _ in range(self._prefetch):
                    group.start_soon(self._guarded, self._work, handout, handler)
                if not isinstance(channel, AbstractRobustChannel):
                    group.start_soon(self._guarded, self._watch, underlay, tag)
                await self._stop.wait()
                await self._leave(tag)
                await self._finish(group)
        finally:
            self._deliveries.end()
            with anyio.CancelScope(shield=True):
                await self._give_back(tag)
        if self._fault is not None:
            raise self._fault

    def _taker(
        self, handout: Handout[AbstractIncomingMessage]
    ) -> Callable[[AbstractIncomingMessage], Coroutine[Any, Any, None]]:
        """Return aio-pika's callback. It does no work itself: aio-pika cancels it when the channel is lost."""

        def accept(message: AbstractIncomingMessage) -> None:
            if self._stop.is_set():
                self._late.append(message)
            else:
                self._in_hand[id(message)] = message
                handout.give(message)

        async def at_once(delivered: DeliveredMessage) -> None:
            accept(IncomingMessage(delivered))

        async def take(message: AbstractIncomingMessage) -> None:
            for lost in handout.drop(_is_lost):  # the broker delivers these again, on the new channel
                self._let_go(lost)
            with suppress(*LOST):
                # From a channel's second message on, this avoids aio-pika's own task for each message.
                consumers = getattr(message.channel, "consumers", {})
                if message.consumer_tag in consumers:
                    consumers[message.consumer_tag] = at_once
            accept(message)

        return take

    async def _work(self, handout: Handout[AbstractIncomingMessage], handler: Handler) -> None:
        """Be one of the `prefetch` tasks that handle messages: to start a task for each message costs more."""
        task = asyncio.current_task()
        assert task is not None
        while True:
            try:
                message = await handout.take()
            except asyncio.CancelledError:
                if self._is_cancelled():
                    raise
                take_back_cancels(task)  # those that its last handler has caused
                continue
            await self._deliver(message, handler)

    async def _leave(self, tag: str) -> None:
        """Let the broker deliver no more."""
        with suppress(*LOST), anyio.move_on_after(max(self._grace, _GOODBYE)):
            await reply(self._queue.cancel(tag))

    async def _finish(self, group: TaskGroup) -> None:
        """Let the deliveries in hand end; then stop the rest."""
        with anyio.move_on_after(self._grace):
            if self._in_hand:
                await self._idle.wait()
        group.cancel_scope.cancel()

    async def _give_back(self, tag: str) -> None:
        """Acknowledge the finished messages, and return the rest to the queue: the channel may stay open for long."""
        if not self._stop.is_set():  # the task was cancelled
            self._stop.set()
            with anyio.move_on_after(_GOODBYE):
                await self._leave(tag)
        with suppress(*LOST), anyio.move_on_after(_GOODBYE):
            await self._acks.flush()
            for message in (*self._in_hand.values(), *self._late):
                if not message.processed:
                    await reply(message.nack())
        self._in_hand.clear()
        self._late.clear()

    async def _deliver(self, message: AbstractIncomingMessage, handler: Handler) -> None:
        try:
            await self._decide(message, handler)
        except LOST as error:
            log.info("consumer %r: the channel of a message was lost: %s", self.name, error)
        except BaseException as error:
            self._late.append(message)
            if self._passes(error):
                raise
            self._give_up(error)
        finally:
            self._let_go(message)

    def _let_go(self, message: AbstractIncomingMessage) -> None:
        del self._in_hand[id(message)]
        if not self._in_hand and self._stop.is_set():
            self._idle.set()

    async def _decide(self, message: AbstractIncomingMessage, handler: Handler) -> None:
        # It raises if it is lost: then no ack can be sent, and the broker delivers the message again.
        _ = message.channel

        async def lay(decision: Decision) -> None:
            await self._places.bury(message, decision, self.name)

        headers = message.headers
        failed, again = attempts_of(headers, self.name), is_again(headers)
        restore_origin(message)
        while True:
            decision = await self._deliveries.handle(
                message, handler, lay, failed=failed, again=again, is_cancelled=self._is_cancelled
            )
            if decision.action is not Action.RETRY or await self._places.retry(message, decision, self.name):
                break
            failed = max(failed, decision.attempts)
            with anyio.move_on_after(self._pause):
                await self._stop.wait()
            if self._stop.is_set():
                self._late.append(message)
                return
            _ = message.channel  # raises as above
        if not message.processed:
            self._acks.add(cast(IncomingMessage, message))

    def _on_close(self, channel: Any, error: BaseException | None = None) -> None:
        if not self._stop.is_set():
            self._give_up(ConnectionError(f"the channel of {self._queue.name!r} was closed: {error}"))

    async def _watch(self, underlay: Any, tag: str) -> None:
        """Check that the broker still delivers: it stops without notice if the queue was deleted."""
        while tag in underlay.consumers:  # noqa: ASYNC110 -- there is no notice
            await anyio.sleep(_LOOK)
        if not self._stop.is_set():
            self._give_up(
                ConnectionError(f"the broker delivers no more of {self._queue.name!r}: it was deleted")
            )


def _is_lost(message: AbstractIncomingMessage) -> bool:
    """True if the channel that a message came by is closed."""
    try:
        return message.channel.is_closed
    except LOST:
        return True
