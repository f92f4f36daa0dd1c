"""Consumers of a real RabbitMQ: with the gate, without, and what others write by hand. Main path: `messages`.

A turn consumes a queue that was filled before, and ends once all its messages are acknowledged. Every turn checks
that each message reached the handler once, and that the queue is empty.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import orjson

from bench.contest import ClaimedTwiceError, Row, Table, collector, reason
from bench.pairs import Figures, clean
from bench.queues import PREFETCH, Broker, Filled, broker, new_message
from bench.run import Run
from fastdedup import Dedup

if TYPE_CHECKING:
    from aio_pika import Message
    from aio_pika.abc import AbstractIncomingMessage

MESSAGES = 20_000  # for a second of the plan's turns: so many that a consumer's start and end hardly count
LISTS, ITEMS = 8000, 50  # messages that carry many items, as many for the same reason, and the items of one
ROUNDS = 2  # a factor for the plan's rounds: a broker beside the client makes single rounds unsteady
BODY = b"x" * 100
KEPT = 3600  # seconds for which the ways by hand keep a key
BARE = "bare aio-pika callbacks"
SET_NX = "SET NX EX by hand, as many connections as messages"
SET_NX_16 = "SET NX EX by hand, 16 connections"
GATE = "fastdedup's Consumer with the gate"
FASTSTREAM = "FastStream, bare"
BARE_LISTS = f"bare callbacks, {ITEMS} items a message"
ONE_KEY = f"Consumer, a key for each message of {ITEMS} items"
A_KEY_EACH = f"claim_many, a key for each of the {ITEMS} items"
AT_THE_SENDER = "takes its lock where a task is sent: a broker's redelivery is executed again"
NOT_PLAYED = {
    "FastStream's own middlewares": "it has no middleware for duplicates",
    "celery-once 3.0": AT_THE_SENDER,
    "celery-singleton 0.3": AT_THE_SENDER,
    "taskiq-deduplication 1.2": AT_THE_SENDER,
    "RabbitMQ's deduplication plugin": "Debian's rabbitmq-server comes without it",
}
NOTES = (
    f"A private RabbitMQ of one core on this machine, a classic queue, prefetch {PREFETCH}, an empty handler. The "
    "queue is filled, and connections are opened, before the clock starts; a turn ends when every message is "
    "acknowledged. Figures and ratios are medians of the rounds.",
    "By hand: redis-py's asyncio client with hiredis; a crash between SET and the work loses the message.",
    f"Rows with {ITEMS} items count items: their body is JSON, and the handler is called for each item. With a key "
    "for each item a publisher may put items into other messages when it publishes again.",
)


Consume = Callable[[], Awaitable[None]]
Way = Callable[[Filled], AbstractAsyncContextManager[Consume]]


# The ways to consume a queue. Each opens what it needs, connections too, before it gives what the clock measures.


async def consume(filled: Filled, callback: Callable[["AbstractIncomingMessage"], Awaitable[None]]) -> None:
    """Let aio-pika call a function, as a task, for each message, until all are done."""
    left, acknowledged = filled.messages, asyncio.get_running_loop().create_future()

    async def call(message: "AbstractIncomingMessage") -> None:
        nonlocal left
        try:
            await callback(message)
            await message.ack()
        except Exception as error:  # noqa: BLE001 -- it voids the turn
            if not acknowledged.done():
                acknowledged.set_exception(error)
        left -= 1
        if not left and not acknowledged.done():
            acknowledged.set_result(None)

    tag = await filled.queue.consume(call)
    await acknowledged
    await filled.queue.cancel(tag)


@asynccontextmanager
async def bare(filled: Filled) -> AsyncIterator[Consume]:
    yield partial(consume, filled, filled.on_message)


def by_hand(filled: Filled) -> AbstractAsyncContextManager[Consume]:
    import redis.asyncio as redis_py

    return _by_hand(filled, redis_py.Redis.from_url(filled.redis, max_connections=2 * PREFETCH))


def pooled(filled: Filled) -> AbstractAsyncContextManager[Consume]:
    import redis.asyncio as redis_py

    pool: Any = redis_py.BlockingConnectionPool.from_url(filled.redis, max_connections=16, timeout=60)
    return _by_hand(filled, redis_py.Redis.from_pool(pool))


@asynccontextmanager
async def _by_hand(filled: Filled, client: Any) -> AsyncIterator[Consume]:
    async def callback(message: "AbstractIncomingMessage") -> None:
        if await client.set(f"{filled.namespace}:{message.message_id}", b"1", nx=True, ex=KEPT):
            await filled.on_message(message)

    async with client:
        await asyncio.gather(*[client.ping() for _ in range(PREFETCH)])  # opens the connections
        yield partial(consume, filled, callback)


def gate(filled: Filled) -> AbstractAsyncContextManager[Consume]:
    return _consumer(filled, filled.on_message)


@asynccontextmanager
async def faststream(filled: Filled) -> AsyncIterator[Consume]:
    from faststream.rabbit import Channel, RabbitBroker, RabbitMessage, RabbitQueue

    broker = RabbitBroker(filled.rabbit, default_channel=Channel(prefetch_count=PREFETCH), logger=None)

    @broker.subscriber(RabbitQueue(filled.queue.name, declare=False))
    async def on(body: bytes, message: RabbitMessage) -> None:
        await filled.on_item(message.message_id)

    async def run() -> None:
        await broker.start()
        await filled.done.wait()

    async with broker:
        yield run


@asynccontextmanager
async def bare_lists(filled: Filled) -> AsyncIterator[Consume]:
    yield partial(consume, filled, filled.on_list)


def one_key(filled: Filled) -> AbstractAsyncContextManager[Consume]:
    return _consumer(filled, filled.on_list)


@asynccontextmanager
async def a_key_each(filled: Filled) -> AsyncIterator[Consume]:
    # Thousands of claims at once, and then as many to complete: on a busy machine they outlast the default timeout.
    async with Dedup(filled.redis, namespace=filled.namespace, timeout=10.0) as dedup:

        async def callback(message: "AbstractIncomingMessage") -> None:
            items = orjson.loads(message.body)
            claims = await dedup.claim_many([item["id"] for item in items])
            for item, claim in zip(items, claims, strict=True):
                if claim.acquired:
                    await filled.on_item(item["id"])
            await asyncio.gather(*[claim.complete() for claim in claims if claim.acquired])

        yield partial(consume, filled, callback)


@asynccontextmanager
async def _consumer(filled: Filled, handler: Any) -> AsyncIterator[Consume]:
    from fastdedup.integrations.rabbitmq import Consumer, message_id

    async with (
        Dedup(filled.redis, namespace=filled.namespace) as dedup,
        Consumer(filled.queue, dedup, key=message_id, declare=True, prefetch=PREFETCH) as consumer,
    ):

        async def run() -> None:
            running = asyncio.create_task(consumer.run(handler))
            await filled.done.wait()
            consumer.stop()
            await running

        yield run


@dataclass(frozen=True, slots=True)
class Contestant:
    """A row: its way to consume, and the rows that it is compared with. `lists`: its messages carry items."""

    name: str
    way: Way
    bases: tuple[str, ...] = ()
    lists: bool = False


CONTESTANTS = (
    Contestant(BARE, bare),
    Contestant(SET_NX, by_hand, (BARE,)),
    Contestant(SET_NX_16, pooled, (BARE,)),
    Contestant(GATE, gate, (BARE, SET_NX, SET_NX_16)),
    Contestant(FASTSTREAM, faststream, (BARE,)),
    Contestant(BARE_LISTS, bare_lists, lists=True),
    Contestant(ONE_KEY, one_key, (BARE_LISTS,), lists=True),
    Contestant(A_KEY_EACH, a_key_each, (BARE_LISTS,), lists=True),
)


def plain_messages(count: int) -> list["Message"]:
    """Make messages, each with an id of its own."""
    return [new_message(BODY, secrets.token_hex(16)) for _ in range(count)]


def lists(count: int) -> list["Message"]:
    """Make messages that carry items, each item with an id of its own."""
    return [
        new_message(
            orjson.dumps([{"id": secrets.token_hex(16), "amount": 7} for _ in range(ITEMS)]),
            secrets.token_hex(16),
        )
        for _ in range(count)
    ]


# Turns


def messages_steps(run: Run) -> int:
    return ROUNDS * run.plan.rounds * len(CONTESTANTS)


async def messages(run: Run) -> Table:
    """Let each contestant consume a queue in each round, and compare them."""
    title = "Consumers of RabbitMQ"
    run = replace(run, plan=replace(run.plan, rounds=ROUNDS * run.plan.rounds))
    try:
        async with broker() as rabbit:
            found, faults = await play_rounds(run, rabbit, CONTESTANTS)
    except Exception as error:  # noqa: BLE001 -- there is no RabbitMQ here
        found, faults = {}, {each.name: f"n/a: {reason(error)}" for each in CONTESTANTS}
    rows = [row_of(each, found, faults) for each in CONTESTANTS]
    rows += [Row(name, note=f"n/a: {why}") for name, why in NOT_PLAYED.items()]
    return Table("messages", title, "rate", tuple(rows), notes=NOTES)


Found = dict[str, list[Figures]]


async def play_rounds(
    run: Run, rabbit: Broker, contestants: Sequence[Contestant]
) -> tuple[Found, dict[str, str]]:
    """Return the figures of each contestant's turns, and for one that failed why. The order changes by the round."""
    found: Found = {each.name: [] for each in contestants}
    faults: dict[str, str] = {}
    for number in range(run.plan.rounds):
        shift = number % len(contestants)
        for each in (*contestants[shift:], *contestants[:shift]):
            run.plan.on_turn(f"messages: {each.name}")
            if each.name in faults:
                continue
            try:
                found[each.name].append(await turn(run, rabbit, each))
            except Exception as error:  # noqa: BLE001 -- a row's failure becomes its note
                faults[each.name] = f"n/a: {reason(error)}"
    return found, faults


async def turn(run: Run, rabbit: Broker, contestant: Contestant) -> Figures:
    """Fill a queue and let a contestant consume it; return its rate and its CPU."""
    await clean(run.plan)
    count = max(ITEMS, round(run.plan.seconds * (LISTS if contestant.lists else MESSAGES)))
    published = lists(count) if contestant.lists else plain_messages(count)
    items = count * ITEMS if contestant.lists else count
    async with rabbit.filled(run, published, items) as filled:
        async with contestant.way(filled) as consume_all:
            with collector(tuned=True):
                began, cpu = time.perf_counter(), time.process_time()
                async with asyncio.timeout(60.0):
                    await consume_all()
                seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        check(filled)
    return {"rate": items / seconds, "cpu_us": 1e6 * cpu / items}


def check(filled: Filled) -> None:
    """See that each item was handled once.

    Raises:
        ClaimedTwiceError: one was handled twice, or not at all.
    """
    if filled.handled != filled.count or len(filled.seen) != filled.count:
        raise ClaimedTwiceError(f"{len(filled.seen)} of {filled.count} items, handled {filled.handled} times")


def row_of(contestant: Contestant, found: Found, faults: Mapping[str, str]) -> Row:
    """Return a row: medians over the rounds, also of the ratios within a round."""
    if fault := faults.get(contestant.name):
        return Row(contestant.name, note=fault)
    turns = found[contestant.name]
    figures = {name: median(each[name] for each in turns) for name in turns[0]}
    ratios = {
        base: median(ours["rate"] / theirs["rate"] for ours, theirs in zip(turns, found[base], strict=True))
        for base in contestant.bases
        if base not in faults
    }
    return Row(contestant.name, figures, ratios)
