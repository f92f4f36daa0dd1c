"""A private RabbitMQ for the benchmark, and queues that are filled before the clock starts."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from bench.run import Run
from tests.brokers import RabbitServer

if TYPE_CHECKING:  # not installed, aio-pika makes rows that say so
    from aio_pika import Message
    from aio_pika.abc import AbstractIncomingMessage, AbstractQueue

PREFETCH = 256


@dataclass(slots=True)
class Filled:
    """A queue with messages, and the handler that counts what comes of them."""

    queue: AbstractQueue
    messages: int
    count: int
    rabbit: str
    redis: str
    namespace: str
    # Mutable: how often each was handled; set once that is as often as expected.
    seen: Counter[str] = field(default_factory=Counter)
    handled: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def on_message(self, message: AbstractIncomingMessage) -> None:
        """Do the work of a message: count it."""
        await self.on_item(str(message.message_id))

    async def on_item(self, name: str) -> None:
        """Do the work of an item: count it."""
        self.seen[name] += 1
        self.handled += 1
        if self.handled == self.count:
            self.done.set()

    async def on_list(self, message: AbstractIncomingMessage) -> None:
        """Do the work of a message that carries items."""
        for item in orjson.loads(message.body):
            await self.on_item(item["id"])


class Broker:
    """A connection to a private RabbitMQ, which fills queues."""

    def __init__(self, server: RabbitServer, connection: Any) -> None:
        self.server = server
        self.connection = connection

    @asynccontextmanager
    async def queue(self) -> AsyncIterator[AbstractQueue]:
        """Give a new queue; delete it at the end, with those that a `Consumer` declares beside it."""
        name = self.server.name("bench")
        async with self.connection.channel() as channel:
            try:
                yield await channel.declare_queue(name)
            finally:
                for each in (name, f"{name}.retry.1000ms", f"{name}.dead"):
                    await channel.queue_delete(each)

    @asynccontextmanager
    async def filled(self, run: Run, messages: Sequence[Message], count: int) -> AsyncIterator[Filled]:
        """Give a new queue with messages, of which the handler shall handle `count` items; in the end it is empty."""
        async with self.queue() as queue:
            await publish(self.connection, queue.name, messages)
            await until_holds(queue, len(messages))
            await queue.channel.set_qos(prefetch_count=PREFETCH)
            yield Filled(queue, len(messages), count, self.server.url, run.plan.url, run.plan.namespace)
            await until_holds(queue, 0)


@asynccontextmanager
async def broker() -> AsyncIterator[Broker]:
    """Start a RabbitMQ and connect to it."""
    import aio_pika

    async with AsyncExitStack() as stack:
        server = stack.enter_context(RabbitServer())
        connection = await stack.enter_async_context(await aio_pika.connect(server.url))
        yield Broker(server, connection)


def new_message(body: bytes, name: str) -> Message:
    """Make a message with an id."""
    import aio_pika

    return aio_pika.Message(body, message_id=name)


async def publish(connection: Any, queue: str, messages: Sequence[Message]) -> None:
    """Publish messages without confirms, which is faster."""
    async with connection.channel(publisher_confirms=False) as channel:
        for message in messages:
            await channel.default_exchange.publish(message, queue)


async def until_holds(queue: AbstractQueue, count: int) -> None:
    """Wait until a queue holds so many messages that are ready.

    Raises:
        RuntimeError: it does not come to that.
    """
    ends = time.monotonic() + 10.0
    while (found := await ready(queue)) != count:
        if time.monotonic() > ends:
            raise RuntimeError(f"the queue holds {found} messages, not {count}")
        await asyncio.sleep(0.01)


async def ready(queue: AbstractQueue) -> int:
    """Return how many messages of a queue are ready."""
    found = await queue.channel.declare_queue(queue.name, passive=True)
    return found.declaration_result.message_count or 0
