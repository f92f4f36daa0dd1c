"""Kill consumers under load, and count the messages that were lost or handled twice: `python -m bench.inbox_kills`.

A broker delivers each message twice or more, to several consumers at once. It kills one of them with SIGKILL,
delivers again what that had not acknowledged, and starts another. In the end each acknowledged message must have left
its effect once. PostgreSQL waits for the disk at each commit.

The consumers are forked from the broker, which has everything imported: so a kill costs some ten milliseconds.
"""

import argparse
import asyncio
import gc
import heapq
import os
import random
import selectors
import signal
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg

from bench.forked import Forked, Run
from bench.server import private_server
from fastdedup import Dedup, InProgressError
from fastdedup.sql import Inbox
from fastdedup.sql.dialects import TableName, dialect_of
from fastdedup.sql.drivers import asyncpg as _asyncpg_driver  # noqa: F401 -- once, and not in each consumer
from tests.databases import PostgresDatabase, PostgresServer

KILLS = 1000
CONSUMERS = 3
AHEAD = 8
"""Messages that a consumer holds at once."""
LONGEST_LIFE = 12
"""A consumer is killed after 1 to so many acknowledged messages, and up to `LATEST` seconds later."""
LATEST = 0.005
LEASE = 1.0
REFUSED_PAUSE = 0.05
"""Seconds until a message is delivered again that its consumer has refused, as another one is at work on it."""
TABLES = f"""
DROP TABLE IF EXISTS effects, seen, inbox_of_kills;
CREATE TABLE effects (message text NOT NULL);
CREATE TABLE seen (id text PRIMARY KEY, status text NOT NULL);
{dialect_of("postgresql", TableName("inbox_of_kills")).ddl()}
"""

Handle = Callable[[str], Awaitable[object]]
Begin = Callable[[], Any]


# The ways to handle a message


def inbox_alone(begin: Begin, gate: Dedup | None) -> Handle:
    """The row and the effect commit together."""
    inbox = Inbox("kills", keep=3600.0, table="inbox_of_kills")

    @inbox.once(key=lambda transaction, message: message, begin=begin, gate=gate)
    async def handle(transaction: Any, message: str) -> None:
        await do_work(transaction, message)

    return handle


def row_first(begin: Begin, gate: Dedup | None) -> Handle:
    """Insert a row and commit; work and commit; update the row: as it is often written."""

    async def handle(message: str) -> None:
        async with begin() as transaction:
            insert = "INSERT INTO seen VALUES ($1, 'started') ON CONFLICT DO NOTHING RETURNING 1"
            if not await transaction.fetchval(insert, message):
                return
        async with begin() as transaction:
            await do_work(transaction, message)
        async with begin() as transaction:
            await transaction.execute("UPDATE seen SET status = 'done' WHERE id = $1", message)

    return handle


def gate_alone(begin: Begin, gate: Dedup | None) -> Handle:
    """The gate's claim is completed after the COMMIT."""
    assert gate is not None

    @gate.once(key=lambda message: message)
    async def handle(message: str) -> None:
        async with begin() as transaction:
            await do_work(transaction, message)

    return handle


async def do_work(transaction: Any, message: str) -> None:
    await transaction.execute("INSERT INTO effects VALUES ($1)", message)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to handle a message. `gated`: it has a gate."""

    make: Callable[[Begin, Dedup | None], Handle]
    gated: bool


WAYS = {
    "inbox": Way(inbox_alone, gated=False),
    "gate + inbox": Way(inbox_alone, gated=True),
    "insert, commit, work, update": Way(row_first, gated=False),
    "gate alone": Way(gate_alone, gated=True),
}


# The consumer


@asynccontextmanager
async def transactions(database: PostgresDatabase) -> AsyncIterator[Begin]:
    """Give a consumer its connections: a function that begins a transaction."""
    async with asyncpg.create_pool(**database.asyncpg, min_size=0, max_size=4) as pool:

        @asynccontextmanager
        async def begin() -> AsyncIterator[Any]:
            async with pool.acquire() as connection, connection.transaction():
                yield connection

        yield begin


async def consume(way: Way, database: PostgresDatabase, url: str, wire: socket.socket) -> None:
    """Handle messages, lines on a socket; answer each with "a" (acknowledged) or "r" (refused)."""
    reader, writer = await asyncio.open_unix_connection(sock=wire)
    tasks = set()
    async with transactions(database) as begin:
        gate = Dedup(url, namespace="kills", lease=LEASE, timeout=2.0)
        if way.gated:
            await gate.open()
        handle = way.make(begin, gate if way.gated else None)

        async def answer(message: str) -> None:
            try:
                await handle(message)
            except InProgressError:
                writer.write(f"r {message}\n".encode())
            else:
                writer.write(f"a {message}\n".encode())

        while line := await reader.readline():
            task = asyncio.create_task(answer(line.decode().strip()))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        await gate.aclose()


# The broker


class Consumer(Forked):
    """A consumer's process, and what it holds."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.holds: Counter[str] = Counter()
        self.acks_left = random.randint(1, LONGEST_LIFE)
        self.rest = b""

    def send(self, message: str) -> None:
        self.holds[message] += 1
        self.wire.sendall(f"{message}\n".encode())

    def answers(self) -> list[str]:
        """Return the lines that have come."""
        *lines, self.rest = (self.rest + self.wire.recv(65_536)).split(b"\n")
        return [line.decode() for line in lines]


class Broker:
    """Delivers each message twice, or `copies` times, and again what was not acknowledged."""

    def __init__(self, run: Run, kills: int, copies: int = 2) -> None:
        self._run = run
        self._kills = kills
        self._copies = copies
        # Mutable: what is to be delivered, by when; the consumers; the counts.
        self._queue: list[tuple[float, int, str]] = []
        self._order = 0
        self._consumers: dict[socket.socket, Consumer] = {}
        self._selector = selectors.DefaultSelector()
        self.published = 0
        self.deliveries = 0
        self.kills = 0

    def deliver(self) -> None:
        """Deliver messages and kill consumers; then deliver all that is left."""
        for _ in range(CONSUMERS):
            self._hire()
        try:
            while self.kills < self._kills or self._queue or any(c.holds for c in self._consumers.values()):
                self._feed()
                for selected, _ in self._selector.select(timeout=0.02):
                    self._hear(self._consumers[selected.fileobj])  # type: ignore[index]
        finally:
            self._dismiss()

    def _hire(self) -> None:
        consumer = Consumer(self._run)
        self._consumers[consumer.wire] = consumer
        self._selector.register(consumer.wire, selectors.EVENT_READ)

    def _feed(self) -> None:
        for consumer in self._consumers.values():
            while consumer.holds.total() < AHEAD and (message := self._next()) is not None:
                consumer.send(message)
                self.deliveries += 1

    def _next(self) -> str | None:
        now = time.monotonic()
        if self._queue and self._queue[0][0] <= now:
            return heapq.heappop(self._queue)[2]
        if self.kills >= self._kills:
            return None
        message = f"message-{self.published}"
        self.published += 1
        for _ in range(1, self._copies):
            self._put(message, now + random.choice((0.0, 0.0, 0.002, 0.05)))
        return message

    def _put(self, message: str, at: float) -> None:
        self._order += 1
        heapq.heappush(self._queue, (at, self._order, message))

    def _hear(self, consumer: Consumer) -> None:
        for line in consumer.answers():
            verdict, message = line.split()
            consumer.holds -= Counter((message,))
            if verdict == "r":
                self._put(message, time.monotonic() + REFUSED_PAUSE)
            else:
                consumer.acks_left -= 1
        if consumer.acks_left <= 0 and self.kills < self._kills:
            self._kill(consumer)

    def _kill(self, consumer: Consumer) -> None:
        time.sleep(random.random() * LATEST)  # the point at which it is hit
        self.kills += 1
        self._selector.unregister(consumer.wire)
        del self._consumers[consumer.wire]
        os.kill(consumer.pid, signal.SIGKILL)
        for message in consumer.holds.elements():
            self._put(message, time.monotonic())
        consumer.close()
        self._hire()

    def _dismiss(self) -> None:
        for consumer in self._consumers.values():
            self._selector.unregister(consumer.wire)
            consumer.kill()
        self._selector.close()


# What is left


def make_tables(database: PostgresDatabase) -> None:
    """Make the tables of the consumers, empty."""
    with psycopg.connect(**database.psycopg, autocommit=True) as connection:
        connection.execute(TABLES)  # type: ignore[arg-type]


def effects_of(database: PostgresDatabase) -> dict[str, int]:
    """Return for each message that left an effect how many it left."""
    with psycopg.connect(**database.psycopg) as connection:
        return dict(connection.execute("SELECT message, count(*) FROM effects GROUP BY 1").fetchall())


@dataclass(frozen=True, slots=True)
class Tally:
    """What came of one way."""

    kills: int
    messages: int
    deliveries: int
    lost: int
    doubled: int
    seconds: float


def measure(name: str, kills: int, database: PostgresDatabase, url: str) -> Tally:
    """Kill consumers of one of `WAYS`; count. See `measure_way`."""
    return measure_way(WAYS[name], kills, database, url)


def measure_way(way: Way, kills: int, database: PostgresDatabase, url: str, copies: int = 2) -> Tally:
    """Kill consumers; count. No other thread may run in this process, because it forks."""
    make_tables(database)
    broker = Broker(lambda wire: consume(way, database, url, wire), kills, copies)
    gc.freeze()
    began = time.perf_counter()
    broker.deliver()
    seconds = time.perf_counter() - began
    counts = effects_of(database)
    return Tally(
        kills=broker.kills,
        messages=broker.published,
        deliveries=broker.deliveries,
        lost=broker.published - len(counts),
        doubled=sum(count > 1 for count in counts.values()),
        seconds=seconds,
    )


def main() -> None:
    print_tallies("python -m bench.inbox_kills", __doc__, WAYS)


def print_tallies(program: str, about: str | None, ways: Mapping[str, Way], copies: int = 2) -> None:
    """Measure the ways that a command names, and print a table."""
    parser = argparse.ArgumentParser(prog=program, description=about)
    parser.add_argument("--kills", type=int, default=KILLS, help="of each way; %(default)s by default")
    parser.add_argument("--way", choices=ways, action="append", help="only this way; may be given again")
    arguments = parser.parse_args()
    print("| | kills | messages | deliveries | lost | doubled | seconds |\n|---|---|---|---|---|---|---|")
    for name in arguments.way or ways:
        with PostgresServer(durable=True) as server, private_server() as url:
            tally = measure_way(ways[name], arguments.kills, server.fresh(), url, copies)
        figures = f"{tally.kills:,} | {tally.messages:,} | {tally.deliveries:,} | {tally.lost:,} | {tally.doubled:,}"
        print(f"| {name} | {figures} | {tally.seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
