"""The part to copy: a consumer behind a gate and an inbox, in a process of its own. Main path: `consume`."""

from __future__ import annotations

import os
import signal
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import Any, Final

import aio_pika
import anyio
import orjson

from fastdedup import Dedup
from fastdedup.integrations.rabbitmq import Consumer, message_id

from .database import pay, paying

LEASE: Final = 1.0
"""Seconds: a killed consumer's claim on a real Redis is free after that."""
PREFETCH: Final = 32
_RETRY: Final = 0.2
_ATTEMPTS: Final = 50
"""More than there are kills: a message may be in hand at each of them."""
_TELLING: Final = 0.05
VARIABLE: Final = "EXAMPLE_CONSUMER"
"""Where a consumer finds its arguments, a line each: a URL may hold a password, so the command line has none."""


async def consume(broker: str, queue: str, path: str, gate: str, namespace: str) -> None:
    """Pay for each message until SIGTERM; write the counts to standard output, a line each time that they change."""
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(await aio_pika.connect(broker))
        orders = await (await connection.channel()).get_queue(queue)
        # Long, because a consumer may wait for the other's transaction.
        dedup = await stack.enter_async_context(Dedup(gate, namespace=namespace, lease=LEASE, timeout=5.0))
        inbox = await stack.enter_async_context(paying(path))
        consumer = Consumer(
            orders,
            dedup,
            key=message_id,
            inbox=inbox,
            wait=2 * LEASE,
            attempts=_ATTEMPTS,
            retry_delay=_RETRY,
            declare=True,
            prefetch=PREFETCH,
        )
        await stack.enter_async_context(consumer)
        async with anyio.create_task_group() as group:
            group.start_soon(_stop_on_signal, consumer)
            group.start_soon(_tell, consumer)
            await consumer.run(_on_message)
            group.cancel_scope.cancel()
        _write(consumer)


async def _on_message(transaction: Any, message: Any) -> None:
    await pay(transaction, message.message_id)


async def _stop_on_signal(consumer: Consumer) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            consumer.stop()


async def _tell(consumer: Consumer) -> None:
    told = None
    while True:
        if told != (told := asdict(consumer.counts)):
            _write(consumer)
        await anyio.sleep(_TELLING)


def _write(consumer: Consumer) -> None:
    os.write(1, orjson.dumps(asdict(consumer.counts), option=orjson.OPT_APPEND_NEWLINE))


if __name__ == "__main__":
    broker, queue, path, gate, namespace = os.environ[VARIABLE].split("\n")
    anyio.run(consume, broker, queue, path, gate, namespace)
