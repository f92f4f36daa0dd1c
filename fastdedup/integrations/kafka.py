"""Kafka with aiokafka: a consumer whose handler does its work once for each message, and commits the finished ones.

    kafka = AIOKafkaConsumer("orders", group_id="billing", enable_auto_commit=False)
    async with Consumer(kafka, dedup, key=header("message-id")) as consumer, kafka:
        await consumer.run(on_order)

Main path: `Consumer.run` → `getmany` → `Deliveries.handle` → a commit up to the first message that is not done.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, Unpack

import anyio
from anyio.lowlevel import checkpoint

from ..checks import check_count, check_place
from ..errors import ConfigError
from ..extras import needs
from ..gateway import Dedup
from ..messages.consumer import BrokerConsumer
from ..messages.decisions import Decision, log
from ..messages.headers import ORIGIN
from ..messages.keys import KeyRule, body_digest, header, place_in_log
from ..messages.partitions import Partition, PartitionJob
from ..messages.room import Headers, Letter, lay
from ..messages.rules import DeadLetterError
from ..messages.settings import ConsumerSettings

with needs(__name__, "aiokafka", "'fastdedup[kafka]'"):
    from aiokafka import (
        AIOKafkaConsumer,
        AIOKafkaProducer,
        ConsumerRebalanceListener,
        ConsumerRecord,
        TopicPartition,
    )
    from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError, MessageSizeTooLargeError

LIMIT: Final = 64
"""Messages of one partition in hand at once, by default."""
_NOWHERE: Final = TopicPartition("", -1)
_POLL: Final = 1.0
"""Seconds between two polls while nothing comes, or there is no room."""
_COMMIT_PAUSE: Final = 0.1
"""Seconds between two commits: those that come again after a crash are duplicates; a commit is a round trip."""
_FAULTS: Final = 5
"""Errors of aiokafka in a row, one a second, until `run` raises the last one."""
_TOPIC_DEADLINE: Final = 10.0
_WORK_SHARE: Final = 0.5
_COMMIT_SHARE: Final = 0.25
"""Parts of the group's rebalance timeout: until work on a revoked partition has ended, and is committed."""

__all__ = ["Consumer", "DeadLetterError", "body", "header", "offset"]


def offset(record: ConsumerRecord) -> str:
    """Return the message's topic, partition, offset and time.

    A redelivery has the same. A message that its publisher sends again has others: then use `header`.
    """
    return place_in_log(record.topic, record.partition, record.offset, record.timestamp)


def body(record: ConsumerRecord) -> str:
    """Return a digest of the message's value.

    Two orders with equal values are one order then: choose it only if a value names its event, by a time or a
    number.
    """
    return body_digest(record.value or b"")


class Consumer(BrokerConsumer[ConsumerRecord, PartitionJob[ConsumerRecord]]):
    """Consumes the topics of an AIOKafkaConsumer; the handler's work is done once for each message.

    Use it as an async context manager around the AIOKafkaConsumer's own, and call `run` in it. Messages of one
    partition with different keys run side by side, those with one key in their order. A partition's offset
    is committed up to its first message that is not done. A message that was not done is tried again in its place,
    after `retry_delay` seconds, and is a dead letter after `attempts`.

    Args:
        kafka: an AIOKafkaConsumer with a group, enable_auto_commit=False and no deserializers.
        dedup: the gate, open before the consumer runs; None if an inbox decides alone.
        key: a function of the record: `header("message-id")`, `offset`, or your own.
        dead_letter: a topic for dead letters, published by `producer`. By default a dead letter is logged, and stays
            in its topic.
        producer: an AIOKafkaProducer, started, without serializers.
        limit: messages of one partition in hand at once; those that wait behind an unfinished one count.
        settings: those that all consumers have, see `fastdedup.messages.settings.ConsumerSettings`: inbox, begin,
            remember, resolve, name, wait, attempts, retry_delay, lease, fingerprint, grace.

    Raises:
        ConfigError: a setting is wrong; the message names it.
    """

    def __init__(
        self,
        kafka: AIOKafkaConsumer,
        dedup: Dedup | None,
        *,
        key: KeyRule,
        dead_letter: str | None = None,
        producer: AIOKafkaProducer | None = None,
        limit: int = LIMIT,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        group = _check_consumer(kafka)
        _check_dead_letter(dead_letter, producer)
        super().__init__(group, dedup, key, settings)
        self._dead_letter = dead_letter
        self._deliveries.check_memory(kafka._session_timeout_ms / 1000, "session_timeout_ms")
        self._kafka = kafka
        self._producer = producer
        self._limit = check_count(limit, "limit")
        self._patience = kafka._rebalance_timeout_ms / 1000
        # Mutable: the partitions in hand; an event: there is something to commit; a poll and a commit under way.
        self._partitions: dict[TopicPartition, Partition[ConsumerRecord]] = {}
        self._something_done = anyio.Event()
        self._polling = anyio.CancelScope()
        self._committing = anyio.CancelScope()

    def stop(self) -> None:
        """Take no more messages; `run` returns once the handlers at work have ended, and their offsets are committed.

        After `grace` seconds it returns anyway. A message whose handler was not begun is left to the partition's next
        consumer.
        """
        super().stop()
        self._polling.cancel()

    # Taking

    async def _open(self) -> None:
        """Listen to rebalances. Best before the AIOKafkaConsumer starts: afterwards it joins its group once more."""
        subscription = self._kafka._subscription
        if self._dead_letter is not None and self._dead_letter in self._kafka.subscription():
            raise ConfigError(f"dead_letter must be a topic that is not consumed, got {self._dead_letter!r}")
        if not self._kafka.subscription() and subscription.subscribed_pattern is None:
            raise ConfigError("kafka is subscribed to no topic: AIOKafkaConsumer('orders', …)")
        if not subscription.partitions_auto_assigned():
            return  # partitions that were assigned by hand are never revoked
        listener = _Listener(self._leave, subscription.listener)
        if subscription.subscribed_pattern is not None:
            self._kafka.subscribe(pattern=subscription.subscribed_pattern.pattern, listener=listener)
        else:
            self._kafka.subscribe(list(self._kafka.subscription()), listener=listener)

    async def _consume(self) -> None:
        await self._see_dead_letters()
        faults = 0
        while not self._stop.is_set():
            try:
                for place, records in (await self._poll()).items():
                    self._take(place, records)
            except KafkaError as error:
                if (faults := faults + 1) > _FAULTS:
                    raise
                log.warning("consumer %r: %s: %s", self.name, type(error).__name__, error)
                with self._wakeable():
                    await anyio.sleep(_POLL)
            else:
                faults = 0

    async def _poll(self) -> Mapping[TopicPartition, list[ConsumerRecord]]:
        """Return as many messages as there is room for; none after a moment, or after a wake-up."""
        found: Mapping[TopicPartition, list[ConsumerRecord]] = {}
        with self._wakeable():
            found = await self._ask()
        await checkpoint()
        return found

    async def _ask(self) -> Mapping[TopicPartition, list[ConsumerRecord]]:
        """Poll for at most a moment, because `max_poll_interval_ms` requires polls. A rebalance takes longer."""
        rooms = {place: self._room_of(place) for place in self._kafka.assignment()}
        rooms = {place: room for place, room in rooms.items() if room > 0}
        for place, room in rooms.items():  # one by one; else the first would get the room of all
            if found := await self._kafka.getmany(place, max_records=room):
                return found  # type: ignore[no-any-return]
        if rooms:
            return await self._kafka.getmany(  # type: ignore[no-any-return]
                *rooms, timeout_ms=round(_POLL * 1000), max_records=min(rooms.values())
            )
        await self._kafka.getmany(_NOWHERE)  # a poll that takes nothing
        await anyio.sleep(_POLL)
        return {}

    def _wakeable(self) -> anyio.CancelScope:
        """Return a scope that `stop` ends, and a message that makes room."""
        self._polling = anyio.CancelScope()
        return self._polling

    def _room_of(self, place: TopicPartition) -> int:
        partition = self._partitions.get(place)
        return self._limit if partition is None else partition.room

    def _take(self, place: TopicPartition, records: Collection[ConsumerRecord]) -> None:
        partition = self._partitions.setdefault(place, Partition(self._limit))
        for record in records:
            self._start(partition.take(record, record.offset))

    # Working

    async def _work_on(self, job: PartitionJob[ConsumerRecord]) -> None:
        record, partition = job.message, job.partition
        try:
            async with partition.turns.of(record.key):
                await self._decide(job, dict(record.headers))
                partition.end(job)
        finally:
            self._something_done.set()
            self._polling.cancel()

    async def _comes_again(self, job: PartitionJob[ConsumerRecord], decision: Decision) -> bool:
        return False

    async def _lay(self, message: ConsumerRecord, decision: Decision) -> None:
        place = f"{message.topic}:{message.partition}:{message.offset}"
        publish = None if self._producer is None else partial(self._publish, self._producer, message)
        await lay(
            Letter(message.headers, {ORIGIN: place}),
            decision,
            self.name,
            publish,
            lambda error: isinstance(error, MessageSizeTooLargeError),  # its topic's limit is not known here
        )

    async def _publish(self, producer: AIOKafkaProducer, message: ConsumerRecord, headers: Headers) -> None:
        pairs = [
            (name, value if isinstance(value, bytes | None) else str(value).encode())
            for name, value in headers
        ]
        await producer.send_and_wait(self._dead_letter, message.value, key=message.key, headers=pairs)

    async def _see_dead_letters(self) -> None:
        """Raise ConfigError unless the topic for dead letters exists, or the broker makes it."""
        if self._producer is None:
            return
        with anyio.move_on_after(_TOPIC_DEADLINE), suppress(KafkaError):
            await self._producer.partitions_for(self._dead_letter)
            return
        raise ConfigError(f"there is no topic {self._dead_letter!r} for dead letters: create it")

    # Committing

    async def _beside(self) -> None:
        while True:
            await self._something_done.wait()
            self._something_done = anyio.Event()
            await self._commit()
            await anyio.sleep(_COMMIT_PAUSE)

    async def _last(self) -> None:
        await self._commit()

    async def _commit(self) -> None:
        """Commit the finished messages of the partitions that this consumer still has."""
        for place in self._partitions.keys() - self._kafka.assignment():
            del self._partitions[place]  # the client would refuse the offsets of all
        untold = {place: partition.untold() for place, partition in self._partitions.items()}
        offsets = {place: done_to for place, done_to in untold.items() if done_to is not None}
        if not offsets:
            return
        with anyio.CancelScope() as self._committing:
            try:
                await self._kafka.commit(offsets)
            except (CommitFailedError, IllegalStateError) as error:
                log.warning("consumer %r: its partitions were taken from it: %s", self.name, error)
                return
            for place, done_to in offsets.items():
                if place in self._partitions:
                    self._partitions[place].tell(done_to)

    async def _leave(self, places: Collection[TopicPartition]) -> None:
        """Give partitions up: wait for begun work for a while, commit the finished messages, forget the rest.

        A commit never outlives this call: aiokafka would send it under the group's next generation, and so it would
        override the partition's next consumer.
        """
        leaving = [self._partitions[place] for place in places if place in self._partitions]
        jobs = {job for partition in leaving for job in partition.jobs}
        for job in jobs:
            job.give_up()
        try:
            with anyio.move_on_after(self._patience * _WORK_SHARE):
                await self._until_ended(jobs)
            self._committing.cancel()
            with anyio.move_on_after(self._patience * _COMMIT_SHARE):
                await self._commit()
        finally:
            for place in places:
                self._partitions.pop(place, None)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc] # aiokafka has no types
    """Calls a consumer, and then the user's own listener."""

    def __init__(self, leave: Callable[[Collection[TopicPartition]], Any], theirs: Any) -> None:
        self._leave = leave
        self._theirs = theirs

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        await self._leave(revoked)
        await self._tell("on_partitions_revoked", revoked)

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        await self._tell("on_partitions_assigned", assigned)

    async def _tell(self, what: str, places: Collection[TopicPartition]) -> None:
        if self._theirs is not None and inspect.isawaitable(told := getattr(self._theirs, what)(places)):
            await told


def _check_consumer(kafka: Any) -> str:
    """Return the group of an AIOKafkaConsumer. Only its private attributes have its settings.

    Raises:
        ConfigError: it cannot be consumed from in this way.
    """
    if not isinstance(kafka, AIOKafkaConsumer):
        raise ConfigError(f"kafka must be an aiokafka.AIOKafkaConsumer, got {type(kafka).__name__}")
    if kafka._group_id is None:
        raise ConfigError("kafka must have a group, which its offsets are committed for: give it group_id=")
    if kafka._enable_auto_commit:
        raise ConfigError(
            "kafka must not commit by itself, or a crash loses what was not done: give it enable_auto_commit=False"
        )
    if kafka._max_poll_interval_ms <= _POLL * 1000:
        raise ConfigError(
            f"kafka is polled once in {_POLL:g} s, and would leave its group each time: give it a "
            f"max_poll_interval_ms of more than {_POLL * 1000:g}, got {kafka._max_poll_interval_ms}"
        )
    if kafka._key_deserializer is not None or kafka._value_deserializer is not None:
        raise ConfigError(
            "kafka must have no deserializers: a message that one cannot read would end each consumer of it. Read "
            "record.value in the handler: what fails there is a dead letter in the end"
        )
    return str(kafka._group_id)


def _check_dead_letter(dead_letter: Any, producer: Any) -> None:
    if dead_letter is None and producer is None:
        return
    if not isinstance(dead_letter, str) or not isinstance(producer, AIOKafkaProducer):
        raise ConfigError(
            "dead_letter= is a topic and producer= the AIOKafkaProducer that publishes to it: give both, got "
            f"{type(dead_letter).__name__} and {type(producer).__name__}"
        )
    check_place(dead_letter, "dead_letter", "a topic")
    if producer._key_serializer is not None or producer._value_serializer is not None:
        raise ConfigError("producer must have no serializers: a dead letter is published unchanged, in bytes")
