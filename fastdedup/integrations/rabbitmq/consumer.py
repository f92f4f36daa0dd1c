"""`Consumer`: takes a queue's messages, and settles each at the broker."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final, Unpack, cast

import anyio
from aio_pika import IncomingMessage, RobustQueue
from aio_pika.abc import AbstractIncomingMessage, AbstractMessage, AbstractQueue, AbstractRobustChannel
from aiormq.abc import AbstractChannel, ChannelFrame, DeliveredMessage

from ...checks import check_count
from ...errors import ConfigError
from ...gateway import Dedup
from ...messages.consumer import GOODBYE, BrokerConsumer, MessageJob
from ...messages.decisions import Decision, log
from ...messages.delivery import take_back_cancels
from ...messages.handout import Handout
from ...messages.settings import ConsumerSettings
from .places import Places, RefusedError, ack_timeout, check_hold, patience, restore_origin
from .replies import LOST, reply

KeyRule = Callable[[AbstractIncomingMessage], str | None]
Job = MessageJob[AbstractIncomingMessage]
PREFETCH: Final = 256
"""Messages that the broker sends ahead of their acks, by default: their claims share batches."""
_LOOK: Final = 1.0
"""Seconds between two looks whether the broker still delivers."""

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


class Consumer(BrokerConsumer[AbstractIncomingMessage, Job]):
    """Consumes a queue; the handler's work is done once for each message, for any number of deliveries.

    Use it as an async context manager, and call `run` in it. A message is acknowledged when it is done, waits
    `retry_delay` seconds if it was not, and becomes a dead letter after `attempts`. It is held unacknowledged
    while another delivery of it is at work, and while Redis (without an inbox) or the database (with one) does not
    answer.

    Args:
        queue: an aio-pika queue. If the connection is lost or the queue deleted, `run` raises ConnectionError; a
            robust connection opens both again.
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
        self._retry_delay = min(rules.retry_delay, patience(queue.arguments or {}) / (2 * rules.attempts))
        self._queue = queue
        self._prefetch = check_count(prefetch, "prefetch", most=0xFFFF)  # AMQP has 16 bits for it
        self._acks = Acks(self.name)
        # Mutable: the consumer's tag at the broker, until that delivers no more; messages that go back at the end.
        self._tag: str | None = None
        self._has_left = anyio.Event()
        self._late: list[AbstractIncomingMessage] = []

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r} of {self._queue.name!r}>"

    async def _open(self) -> None:
        if not getattr(self._queue.channel, "publisher_confirms", True):
            raise ConfigError(
                "the queue's channel must confirm what is published: open it without publisher_confirms=False"
            )
        await self._places.open(self._queue)

    # Taking

    async def _consume(self) -> None:
        channel = self._queue.channel
        await reply(channel.set_qos(prefetch_count=self._prefetch))
        if not isinstance(channel, AbstractRobustChannel):
            channel.close_callbacks.add(self._on_close)
        handout = Handout[Job]()
        underlay = await reply(channel.get_underlay_channel())
        self._tag = await reply(self._queue.consume(self._taker(handout)))
        for _ in range(self._prefetch):
            self._start_beside(partial(self._serve, handout))
        if not isinstance(channel, AbstractRobustChannel):
            if channel.is_closed:
                self._on_close(channel)
            self._start_beside(partial(self._watch, underlay, self._tag))
        await self._stop.wait()
        await self._leave()

    def _taker(self, handout: Handout[Job]) -> Callable[[AbstractIncomingMessage], Coroutine[Any, Any, None]]:
        """Return aio-pika's callback. It does no work itself: aio-pika cancels it when the channel is lost."""

        def accept(message: AbstractIncomingMessage) -> None:
            if self._has_left.is_set():  # the broker did not learn that, and would deliver it again at once
                self._late.append(message)
                return
            job = Job(message)
            self._jobs.add(job)
            if self._stop.is_set():
                job.give_up()
            handout.give(job)

        async def at_once(delivered: DeliveredMessage) -> None:
            accept(IncomingMessage(delivered))

        async def take(message: AbstractIncomingMessage) -> None:
            self._jobs.difference_update(handout.drop(_has_no_channel))  # the broker delivers these again
            with suppress(*LOST):
                # From a channel's second message on, this avoids aio-pika's own task for each message.
                consumers = getattr(message.channel, "consumers", {})
                if message.consumer_tag in consumers:
                    consumers[message.consumer_tag] = at_once
            accept(message)

        return take

    async def _serve(self, handout: Handout[Job]) -> None:
        """Be one of the `prefetch` tasks that handle messages: to start a task for each message costs more."""
        task = asyncio.current_task()
        assert task is not None
        while True:
            try:
                job = await handout.take()
            except asyncio.CancelledError:
                if self._is_cancelled():
                    raise
                take_back_cancels(task)  # those that its last handler has caused
                continue
            await self._guarded(self._run_job, job)

    # Working

    async def _beside(self) -> None:
        await self._acks.run()

    async def _work_on(self, job: Job) -> None:
        message = job.message
        try:
            # Raises an error if the channel is lost: then no ack can be sent, and the broker delivers it again.
            _ = message.channel
            restore_origin(message)
            await self._decide(job, message.headers)
            if not message.processed:
                self._acks.add(cast(IncomingMessage, message))
        except LOST as error:
            log.info("consumer %r: the channel of a message was lost: %s", self.name, error)
        except BaseException:
            self._late.append(message)
            raise

    async def _comes_again(self, job: Job, decision: Decision) -> bool:
        job.is_begun = True  # else `stop` would cut the copy off, and both it and the message may come again
        return await self._places.retry(job.message, decision, self.name)

    async def _pause(self, job: Job, seconds: float) -> None:
        await super()._pause(job, seconds)
        _ = job.message.channel  # raises as above

    async def _lay(self, message: AbstractIncomingMessage, decision: Decision) -> None:
        await self._places.bury(message, decision, self.name)

    def _is_lost(self, error: Exception) -> bool:
        return not isinstance(
            error, RefusedError
        )  # its place is full; after any other error this consumer ends

    # Leaving

    async def _leave(self) -> None:
        """Let the broker deliver no more."""
        try:
            with suppress(*LOST):
                if self._tag is not None:
                    # aio-pika before 10.1 restores a robust queue's consumer if the broker does not confirm its end.
                    if isinstance(self._queue, RobustQueue):
                        self._queue._consumers.pop(self._tag, None)
                    await reply(self._queue.cancel(self._tag))
                    self._tag = None  # not before: a call that was cut off is repeated
        finally:
            self._has_left.set()

    async def _give_back(self, job: Job) -> None:
        await self._has_left.wait()  # else the broker might deliver it here
        with anyio.move_on_after(GOODBYE, shield=True):  # a nack that is cut off would be sent twice
            await _return(job.message)

    async def _leave_all(self) -> None:
        """Acknowledge the finished messages, and return the rest to the queue: the channel may stay open for long."""
        if self._is_cancelled() or not self._stop.is_set():  # else the broker was asked before
            self._stop.set()
            with anyio.move_on_after(GOODBYE):
                await self._leave()
        with anyio.move_on_after(GOODBYE):
            await self._acks.flush()
            for message in (*self._late, *(job.message for job in self._jobs)):
                await _return(message)
        self._late.clear()

    def _on_close(self, channel: Any, error: BaseException | None = None) -> None:
        # Before it has a tag, the call under way raises the broker's own error, which must not come second.
        if self._tag is not None and not self._stop.is_set():
            self._give_up(ConnectionError(f"the channel of {self._queue.name!r} was closed: {error}"))

    async def _watch(self, underlay: Any, tag: str) -> None:
        """Check that the broker still delivers: it stops without notice if the queue was deleted."""
        while tag in underlay.consumers:  # noqa: ASYNC110 -- there is no notice
            await anyio.sleep(_LOOK)
        if not self._stop.is_set():
            self._give_up(
                ConnectionError(f"the broker delivers no more of {self._queue.name!r}: it was deleted")
            )


async def _return(message: AbstractIncomingMessage) -> None:
    """Return a message to its queue, unless it was settled or its channel was lost."""
    with suppress(*LOST):
        if not message.processed:
            await reply(message.nack())


def _has_no_channel(job: Job) -> bool:
    """True if the channel that a message came by is closed."""
    try:
        return job.message.channel.is_closed
    except LOST:
        return True
