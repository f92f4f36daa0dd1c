"""Consumers of RabbitMQ whose inbox decides, with a gate before it and without. Main path: `messages_inbox`."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from bench.contest import Table, collector
from bench.inbox import BARE as INSERT
from bench.inbox import KEEP, Postgres, open_postgres
from bench.messages import BODY, check
from bench.pairs import Figures, Pair, play_pairs
from bench.queues import Broker, Filled, broker, new_message
from bench.run import Run
from fastdedup import Dedup
from fastdedup.sql import Inbox

if TYPE_CHECKING:
    from aio_pika import Message
    from aio_pika.abc import AbstractIncomingMessage

CONNECTIONS = 32
MESSAGES = 2000  # of a turn of one second; each is delivered twice
# Rounds for each of the plan. Client, database, broker and Redis want four cores: on two, rounds differ by half.
TIMES = 2
NAMES = ("Consumer with the inbox alone", "Consumer with gate and inbox")
NOTE = (
    f"PostgreSQL with fsync, {CONNECTIONS} connections, by asyncpg; the work is one INSERT. Each message was "
    "published twice, in random order: one delivery in two is a duplicate. Figures are of deliveries; the CPU is the "
    "client's."
)


def messages_inbox_steps(run: Run) -> int:
    return 2 * TIMES * run.plan.rounds


async def messages_inbox(run: Run) -> Table:
    """Let consumers take messages and duplicates, with a gate and without."""
    async with AsyncExitStack() as stack:
        pairs = [(NAMES, partial(_pair, stack, run))]
        rows = await play_pairs(run.plan, "messages-inbox", pairs, times=TIMES)
    return Table("messages-inbox", "Duplicates at consumers of RabbitMQ", "rate", tuple(rows), notes=(NOTE,))


async def _pair(stack: AsyncExitStack, run: Run) -> Pair:
    rabbit = await stack.enter_async_context(broker())
    database = await open_postgres(stack, CONNECTIONS)
    gate = await stack.enter_async_context(Dedup(run.plan.url, namespace=run.plan.namespace, timeout=5.0))
    turns = (partial(_turn, run, rabbit, database, None), partial(_turn, run, rabbit, database, gate))
    return Pair(NAMES, turns, "", also={"cpu_us": f"{NAMES[0]} CPU"})


async def _turn(run: Run, rabbit: Broker, database: Postgres, gate: Dedup | None) -> Figures:
    made = _twice(max(50, round(run.plan.seconds * MESSAGES)))
    async with rabbit.filled(run, made, len(made) // 2) as filled:
        with collector(tuned=True):
            began, cpu = perf_counter(), process_time()
            async with asyncio.timeout(60.0):
                await _consume(filled, database, gate)
            seconds, cpu = perf_counter() - began, process_time() - cpu
        check(filled)
    return {"rate": len(made) / seconds, "cpu_us": 1e6 * cpu / len(made)}


async def _consume(filled: Filled, database: Postgres, gate: Dedup | None) -> None:
    from fastdedup.integrations.rabbitmq import Consumer, message_id

    async def work(connection: Any, message: AbstractIncomingMessage) -> None:
        await connection.execute(INSERT, message.message_id)
        await filled.on_message(message)

    inbox = Inbox("bench-messages", keep=KEEP, begin=database.begin)
    async with Consumer(filled.queue, gate, key=message_id, inbox=inbox, declare=True) as consumer:
        running = asyncio.create_task(consumer.run(work))
        await _until(lambda: consumer.counts.first + consumer.counts.duplicate == filled.messages, running)
        consumer.stop()
        await running


async def _until(holds: Callable[[], bool], running: Awaitable[None]) -> None:
    """Wait until a condition holds, or a consumer ends with an error."""
    while not holds():
        await asyncio.wait([running], timeout=0.002)  # type: ignore[list-item,type-var] # a task
        if running.done():  # type: ignore[attr-defined]
            await running


def _twice(count: int) -> list[Message]:
    """Make messages, each twice, in random order."""
    names = [secrets.token_hex(16) for _ in range(count)] * 2
    random.shuffle(names)
    return [new_message(BODY, name) for name in names]
