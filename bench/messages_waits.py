"""How often a message is delivered while nobody can work on it. Main path: `messages_waits`.

Its twin is at work, or Redis is down; a consumer that gives it back to the broker at once gets it at once again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import redis.asyncio as redis_py
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from bench.contest import Row, Table, reason
from bench.messages import plain_messages
from bench.pairs import Figures
from bench.queues import Broker, broker, new_message, publish
from bench.run import Run
from fastdedup import Dedup
from tests.servers import RedisServer

if TYPE_CHECKING:
    from aio_pika.abc import AbstractIncomingMessage, AbstractQueue

WORK = 2.0  # seconds that the twin is at work
SHORT_WAIT = 1.0
OUTAGE = 20.0  # seconds that Redis is down, for a turn of one second
LEAST_OUTAGE = 3.0
MESSAGES, HANDLER, PREFETCH = 3000, 0.05, 32  # of the outage: more than are worked on before it and after
TWIN_BY_HAND = "twin at work: SET NX by hand, requeued at once"
TWIN = "twin at work: Consumer"
TWIN_SHORT = f"twin at work: Consumer(wait={SHORT_WAIT:g})"
DOWN_BY_HAND = "Redis down: SET NX by hand, requeued at once"
DOWN = "Redis down: Consumer"
NOTES = (
    f"A message is published twice; the work takes {WORK:g} s. `deliveries` are those of the second copy.",
    "Redis is killed under a consumer and started again, empty. `redelivered` are the deliveries beyond the first of "
    "each message. `resumed_ms` is the time from Redis's first answer to the first message that is worked on.",
)
ROWS = (TWIN_BY_HAND, TWIN, TWIN_SHORT, DOWN_BY_HAND, DOWN)


@dataclass(slots=True)
class Watched:
    """What a consumer's key rule and handler were called with."""

    work: float
    deliveries: Counter[str] = field(default_factory=Counter)
    worked_at: list[float] = field(default_factory=list)

    def key(self, message: AbstractIncomingMessage) -> str | None:
        """Note a delivery."""
        from fastdedup.integrations.rabbitmq import message_id

        self.deliveries[str(message.message_id)] += 1
        return message_id(message)

    async def begun(self, count: int) -> None:
        """Wait until the handler was called so often."""
        async with asyncio.timeout(30.0):
            while len(self.worked_at) < count:  # noqa: ASYNC110 -- a benchmark may look
                await asyncio.sleep(0.01)

    async def handler(self, message: AbstractIncomingMessage) -> None:
        """Do the work."""
        self.worked_at.append(time.monotonic())
        await asyncio.sleep(self.work)


Consume = Callable[["AbstractQueue", Watched, str, asyncio.Event], Awaitable[None]]


async def by_hand(queue: AbstractQueue, watched: Watched, url: str, stop: asyncio.Event) -> None:
    """Set a key for each message; where that is refused or fails give the message back."""
    client = redis_py.Redis.from_url(url, retry=Retry(NoBackoff(), 0))

    async def call(message: AbstractIncomingMessage) -> None:
        try:
            first = await client.set(f"by-hand:{watched.key(message)}", b"1", nx=True, ex=3600)
        except RedisError:
            first = False
        if first:
            await watched.handler(message)
            await message.ack()
        else:
            await message.nack(requeue=True)

    async with client:
        await queue.channel.set_qos(prefetch_count=PREFETCH)
        tag = await queue.consume(call)
        await stop.wait()
        await queue.cancel(tag)
        await asyncio.sleep(watched.work)  # those under way


async def ours(
    queue: AbstractQueue, watched: Watched, url: str, stop: asyncio.Event, *, wait: float = 5.0
) -> None:
    """Consume with the gate."""
    from fastdedup.integrations.rabbitmq import Consumer

    async with (
        Dedup(url, namespace="waits") as dedup,
        Consumer(queue, dedup, key=watched.key, declare=True, wait=wait, prefetch=PREFETCH) as consumer,
    ):
        running = asyncio.create_task(consumer.run(watched.handler))
        await stop.wait()
        consumer.stop()
        await running


@contextmanager
def killable_redis() -> Iterator[RedisServer]:
    """Start a Redis that may be killed."""
    server = RedisServer().start()
    try:
        yield server
    finally:
        server.stop()


async def twin(rabbit: Broker, consume: Consume) -> Figures:
    """Publish a message twice; count the deliveries of the second until the work on the first has ended."""
    watched, stop = Watched(WORK), asyncio.Event()
    with killable_redis() as server:
        async with rabbit.queue() as queue:
            await publish(rabbit.connection, queue.name, [new_message(b"{}", "one")] * 2)
            running = asyncio.create_task(consume(queue, watched, server.url, stop))
            await watched.begun(1)
            await asyncio.sleep(WORK + 0.5)
            stop.set()
            await running
            await queue.purge()
    return {"deliveries": watched.deliveries["one"] - 1}


async def down(rabbit: Broker, seconds: float, consume: Consume) -> Figures:
    """Kill Redis under a consumer; count the deliveries until it works again."""
    watched, stop = Watched(HANDLER), asyncio.Event()
    with killable_redis() as server:
        async with rabbit.queue() as queue:
            await publish(rabbit.connection, queue.name, plain_messages(MESSAGES))
            running = asyncio.create_task(consume(queue, watched, server.url, stop))
            await watched.begun(PREFETCH)
            server.kill()
            await asyncio.sleep(seconds)
            down_until = time.monotonic()
            await asyncio.to_thread(server.start)
            back = time.monotonic()
            await asyncio.sleep(2.0)
            stop.set()
            await running
            await queue.purge()
    resumed = min((at for at in watched.worked_at if at > down_until), default=float("inf"))
    deliveries = watched.deliveries
    return {
        "redelivered": deliveries.total() - len(deliveries),
        "resumed_ms": 1000 * max(0.0, resumed - back),
        "down_s": seconds,
    }


def messages_waits_steps(run: Run) -> int:
    return len(ROWS)


async def messages_waits(run: Run) -> Table:
    """Count deliveries: once for each row, as these are counts, not rates."""
    outage = max(LEAST_OUTAGE, OUTAGE * run.plan.seconds)
    short: Any = partial(ours, wait=SHORT_WAIT)
    plays = (
        partial(twin, consume=by_hand),
        partial(twin, consume=ours),
        partial(twin, consume=short),
        partial(down, seconds=outage, consume=by_hand),
        partial(down, seconds=outage, consume=ours),
    )
    rows = []
    try:
        async with broker() as rabbit:
            for name, play in zip(ROWS, plays, strict=True):
                run.plan.on_turn(f"messages-waits: {name}")
                rows.append(Row(name, await play(rabbit)))
    except Exception as error:  # noqa: BLE001 -- the rows that are missing say why
        rows += [Row(name, note=f"n/a: {reason(error)}") for name in ROWS[len(rows) :]]
    return Table(
        "messages-waits", "Deliveries of messages that must wait", "deliveries", tuple(rows), notes=NOTES
    )
