"""Kill consumers of a RabbitMQ queue, and the broker, under load; count the messages lost and those done twice.

`python -m bench.message_kills`. A publisher publishes each message twice, with confirms, and again under the same id
where the broker died before its confirm. Consumers take the messages from a durable quorum queue and write an effect
into PostgreSQL, which waits for the disk at each commit. Consumers are killed with SIGKILL after a few messages,
the broker with all its processes; both are started again. In the end each confirmed message must have left its effect
once.
"""

import argparse
import asyncio
import gc
import logging
import os
import random
import selectors
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aio_pika
from aio_pika.abc import AbstractIncomingMessage, AbstractRobustChannel

from bench.forked import Forked
from bench.inbox_kills import LATEST, LEASE, LONGEST_LIFE, do_work, effects_of, make_tables, transactions
from bench.server import private_server
from fastdedup import Dedup
from fastdedup.integrations.rabbitmq import Consumer, message_id
from fastdedup.sql import Inbox
from tests.brokers import RabbitServer
from tests.databases import PostgresDatabase, PostgresServer

KILLS, BROKER_KILLS = 1000, 20
CONSUMERS = 3
PREFETCH = 32
"""Messages that a consumer holds at once; a killed one leaves so many claims until their leases end."""
WAIT, RETRY_DELAY = 0.5, 0.5
ATTEMPTS = 10_000
"""More than a message can be hit by kills: what is counted as dead-lettered was so wrongly."""
LONGEST_IDLE = 30.0
"""Seconds after which a consumer is replaced that has done nothing: its end says nothing, so it counts as no kill."""
BACKLOG = 100
"""Messages ready in the queue at which the publisher pauses."""
IN_FLIGHT = 16
SETTLE = 3.0
"""Seconds for which the queues must be empty in the end: longer than a retry is on its way, or a lease lasts."""
QUEUE = "kills"
PLACES = (QUEUE, f"{QUEUE}.retry.{round(1000 * RETRY_DELAY)}ms", f"{QUEUE}.dead")
DELIVERED, DONE, CONFIRMED = b"d", b"a", b"c"
LAST_WORDS = 30.0
"""Seconds after which a process that was told to end is ended."""
FAULTS = (Exception, asyncio.CancelledError)
"""Of a publisher whose broker was killed: aiormq cancels whoever waits for a reply."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to handle a message."""

    gated: bool
    inbox: bool


WAYS = {
    "gate + inbox": Way(gated=True, inbox=True),
    "inbox alone": Way(gated=False, inbox=True),
    "gate alone": Way(gated=True, inbox=False),
}


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[AbstractRobustChannel]:
    """Give a channel that outlives the broker's restarts."""
    connection = await aio_pika.connect_robust(url, reconnect_interval=0.1, fail_fast=False)
    try:
        yield await connection.channel()
    finally:
        await connection.close()


async def declare(url: str, redis: str) -> None:
    """Make the durable quorum queues; and import, once for all consumers, what a `Dedup` imports as it opens."""
    dedup = Dedup(redis, namespace="declare")
    async with connected(url) as channel, dedup:
        arguments = {"x-queue-type": "quorum"}
        queue = await channel.declare_queue(QUEUE, durable=True, arguments=arguments)
        async with Consumer(queue, dedup, key=message_id, declare=True, retry_delay=RETRY_DELAY):
            pass


async def ready(url: str) -> dict[str, int]:
    """Return how many messages are ready in each queue."""
    async with await aio_pika.connect(url) as connection, connection.channel() as channel:
        found = [await channel.declare_queue(name, passive=True) for name in PLACES]
    return {each.name: each.declaration_result.message_count or 0 for each in found}


# The processes


async def consume(way: Way, database: PostgresDatabase, redis: str, rabbit: str, wire: socket.socket) -> None:
    """Consume until the other process closes the socket; tell it of each delivery, and of each handler's end."""

    def key(message: AbstractIncomingMessage) -> str | None:
        tell(wire, DELIVERED)
        return message_id(message)

    async with transactions(database) as begin, connected(rabbit) as channel:

        async def alone(message: AbstractIncomingMessage) -> None:
            async with begin() as transaction:
                await do_work(transaction, str(message.message_id))
            tell(wire, DONE)

        async def with_inbox(transaction: Any, message: AbstractIncomingMessage) -> None:
            await do_work(transaction, str(message.message_id))
            tell(wire, DONE)

        inbox = Inbox("kills", keep=3600.0, table="inbox_of_kills", begin=begin) if way.inbox else None
        dedup = Dedup(redis, namespace="kills", lease=LEASE, timeout=2.0)
        if way.gated:
            await dedup.open()
        queue = await channel.get_queue(QUEUE)
        async with Consumer(
            queue,
            dedup if way.gated else None,
            key=key,
            inbox=inbox,
            wait=WAIT,
            attempts=ATTEMPTS,
            retry_delay=RETRY_DELAY,
            prefetch=PREFETCH,
            grace=10.0,
        ) as consumer:
            watching = asyncio.create_task(when_closed(wire, consumer.stop))
            await consumer.run(with_inbox if way.inbox else alone)
            watching.cancel()
        await dedup.aclose()


def tell(wire: socket.socket, what: bytes) -> None:
    """Write to the other process. It may be busy with the broker's restart: then one is not counted."""
    with suppress(BlockingIOError):
        wire.send(what)


async def when_closed(wire: socket.socket, then: Any) -> None:
    """Call a function when the other process shuts its end of a socket; this process ends soon after, in any case."""
    reader, _ = await asyncio.open_unix_connection(sock=wire.dup())
    await reader.read()
    asyncio.get_running_loop().call_later(LAST_WORDS, os._exit, 1)
    then()


async def publish(rabbit: str, wire: socket.socket) -> None:
    """Publish messages until the other process closes the socket; then end those that were begun."""
    stop = asyncio.Event()
    watching = asyncio.create_task(when_closed(wire, stop.set))
    async with connected(rabbit) as channel:
        count = 0
        while not stop.is_set():
            names = [f"message-{count + i}" for i in range(IN_FLIGHT)]
            await asyncio.gather(*[publish_twice(channel, name) for name in names])
            count += len(names)
            tell(wire, CONFIRMED * len(names))
            await until_taken(channel)
    watching.cancel()


async def publish_twice(channel: AbstractRobustChannel, name: str) -> None:
    """Publish a message and, a little later, once more; each until it is confirmed."""
    for pause in (0.0, random.choice((0.0, 0.002, 0.05, 0.5))):
        await asyncio.sleep(pause)
        message = aio_pika.Message(b"{}", message_id=name, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        while True:
            with suppress(*FAULTS):
                await channel.default_exchange.publish(message, QUEUE, timeout=5.0)
                break
            await asyncio.sleep(0.05)


async def until_taken(channel: AbstractRobustChannel) -> None:
    """Wait while the queue is long."""
    while True:
        with suppress(*FAULTS):
            queue = await channel.declare_queue(QUEUE, passive=True, robust=False, timeout=5.0)
            if (queue.declaration_result.message_count or 0) < BACKLOG:
                return
        await asyncio.sleep(0.05)


# The killing


class Crew:
    """The consumers and the publisher, and what they have told."""

    def __init__(self, way: Way, database: PostgresDatabase, redis: str, rabbit: str) -> None:
        self._consume = partial(consume, way, database, redis, rabbit)
        self._rabbit = rabbit
        # Mutable: the consumers, each with its acknowledgements left and when it is idle too long; the counts.
        self._consumers: dict[socket.socket, Hired] = {}
        self._selector = selectors.DefaultSelector()
        self._publisher: Forked | None = None
        self.kills = self.deliveries = self.ended = self.published = 0

    def begin(self) -> None:
        """Start the publisher and the consumers."""
        self._publisher = Forked(partial(publish, self._rabbit))
        self._selector.register(self._publisher.wire, selectors.EVENT_READ)
        self.hire()

    def hire(self) -> None:
        """Start the consumers that are missing."""
        while len(self._consumers) < CONSUMERS:
            process = Forked(self._consume)
            self._consumers[process.wire] = Hired(process)
            self._selector.register(process.wire, selectors.EVENT_READ)

    def hear(self) -> list["Hired"]:
        """Take what the processes tell; return the consumers whose time has come: each has done some work."""
        for selected, _ in self._selector.select(timeout=0.02):
            wire: socket.socket = selected.fileobj  # type: ignore[assignment]
            told = wire.recv(65_536)
            if consumer := self._consumers.get(wire):
                self._hear(consumer, told)
            elif told:
                self.published += told.count(CONFIRMED)
            else:
                raise RuntimeError("the publisher has ended")
        now = time.monotonic()
        for idle in [each for each in self._consumers.values() if each.idle_at < now]:
            self._end(idle)
        return [each for each in self._consumers.values() if each.acks_left <= 0]

    def kill(self, consumer: "Hired") -> None:
        """Kill a consumer at a point that nobody chose, and start another."""
        time.sleep(random.random() * LATEST)
        self._end(consumer)
        self.kills += 1

    def end_publishing(self) -> None:
        """Let the publisher end what it has begun."""
        assert self._publisher is not None
        wire = self._publisher.wire
        wire.shutdown(socket.SHUT_WR)
        self._selector.unregister(wire)
        while told := wire.recv(65_536):
            self.published += told.count(CONFIRMED)
        self._publisher.close()
        self._publisher = None

    def dismiss(self) -> None:
        """Let the consumers end what they have in hand."""
        for consumer in list(self._consumers.values()):
            wire = consumer.process.wire
            wire.shutdown(socket.SHUT_WR)
            while told := wire.recv(65_536):
                self.deliveries += told.count(DELIVERED)
            self._forget(consumer)
            consumer.process.close()

    def close(self) -> None:
        """Kill all that is left."""
        for consumer in list(self._consumers.values()):
            self._forget(consumer)
            consumer.process.kill()
        if self._publisher is not None:
            self._publisher.kill()
        self._selector.close()

    def _end(self, consumer: "Hired") -> None:
        self._forget(consumer)
        consumer.process.kill()
        self.hire()

    def _hear(self, consumer: "Hired", told: bytes) -> None:
        self.deliveries += told.count(DELIVERED)
        if done := told.count(DONE):
            consumer.acks_left -= done
            consumer.idle_at = time.monotonic() + LONGEST_IDLE
        if not told:  # it ended by itself, and has shown why
            self.ended += 1
            self._forget(consumer)
            consumer.process.close()
            self.hire()

    def _forget(self, consumer: "Hired") -> None:
        self._selector.unregister(consumer.process.wire)
        del self._consumers[consumer.process.wire]


@dataclass(slots=True)
class Hired:
    """A consumer's process, and when it is to be killed."""

    process: Forked
    acks_left: int = field(default_factory=lambda: random.randint(1, LONGEST_LIFE))
    idle_at: float = field(default_factory=lambda: time.monotonic() + LONGEST_IDLE)


@dataclass(frozen=True, slots=True)
class Tally:
    """What came of one way. `ended`: consumers that ended by themselves."""

    kills: int
    broker_kills: int
    messages: int
    deliveries: int
    lost: int
    doubled: int
    dead_lettered: int
    ended: int
    seconds: float


def measure(way: Way, kills: int, broker_kills: int, limit: float) -> Tally:
    """Kill consumers and the broker, `limit` seconds at most; let all messages be done, and count."""
    with (
        PostgresServer(durable=True) as postgres,
        private_server() as redis,
        RabbitServer() as rabbit,
    ):
        database = postgres.fresh()
        make_tables(database)
        asyncio.run(declare(rabbit.url, redis))
        until(lambda: all(rabbit.would_keep(name) for name in PLACES), "the queues are on disk")
        gc.freeze()
        crew = Crew(way, database, redis, rabbit.url)
        began = time.monotonic()
        try:
            crew.begin()
            brokers = strike(crew, rabbit, kills, broker_kills, began + limit)
            crew.end_publishing()
            drain(crew, rabbit.url)
        finally:
            crew.close()
        left = asyncio.run(ready(rabbit.url))
        effects = effects_of(database)
        return Tally(
            kills=crew.kills,
            broker_kills=brokers,
            messages=crew.published,
            deliveries=crew.deliveries,
            lost=crew.published - len(effects),
            doubled=sum(count > 1 for count in effects.values()),
            dead_lettered=left[PLACES[2]],
            ended=crew.ended,
            seconds=time.monotonic() - began,
        )


def strike(crew: Crew, rabbit: RabbitServer, kills: int, broker_kills: int, ends: float) -> int:
    """Kill consumers, and the broker at even distances between them; return how often the broker was killed."""
    brokers = 0
    while (crew.kills < kills or brokers < broker_kills) and time.monotonic() < ends:
        for consumer in crew.hear():
            crew.kill(consumer)
        if brokers < broker_kills and crew.kills >= (brokers + 1) * kills / (broker_kills + 1):
            time.sleep(random.random() * 0.1)
            rabbit.restart()
            brokers += 1
    return brokers


def drain(crew: Crew, url: str) -> None:
    """Consume until nothing is left, neither in the queues nor in a consumer's hands."""
    while True:
        crew.hire()
        quiet_until = time.monotonic() + SETTLE
        while time.monotonic() < quiet_until:
            crew.hear()
            left = asyncio.run(ready(url))
            if any(left[name] for name in PLACES[:2]):
                quiet_until = time.monotonic() + SETTLE
        crew.dismiss()
        left = asyncio.run(ready(url))
        if not any(left[name] for name in PLACES[:2]):
            return


def until(holds: Any, what: str, seconds: float = 30.0) -> None:
    """Wait until a condition holds."""
    ends = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > ends:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)


def main() -> None:
    """Measure the ways that the arguments name, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.message_kills", description=__doc__)
    parser.add_argument(
        "--kills", type=int, default=KILLS, help="of consumers, for each way; %(default)s by default"
    )
    parser.add_argument("--broker-kills", type=int, default=BROKER_KILLS, help="%(default)s by default")
    parser.add_argument(
        "--limit", type=float, default=1200.0, help="seconds of killing for each way; %(default)g"
    )
    parser.add_argument("--way", choices=WAYS, action="append", help="only this way; may be given again")
    arguments = parser.parse_args()
    for name in ("aio_pika", "aiormq", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # each of them tells of each kill
    print(
        "| | kills | of the broker | messages | deliveries | lost | doubled | dead letters | ended | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for name in arguments.way or WAYS:
        tally = measure(WAYS[name], arguments.kills, arguments.broker_kills, arguments.limit)
        counts = (
            f"{tally.kills:,} | {tally.broker_kills} | {tally.messages:,} | {tally.deliveries:,} | {tally.lost:,} | "
            f"{tally.doubled:,} | {tally.dead_lettered:,} | {tally.ended:,}"
        )
        print(f"| {name} | {counts} | {tally.seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
