"""Counts of a consumer that outlast its process: how many deliveries were the first, duplicates, dead letters.

`consume_and_count` is the main path, in place of `consumer.run(handler)`. Each process stores its counts once a
second, before each handler, and at its end; `total` adds those of all processes. A process that is killed loses what
it counted since the last store.
"""

import asyncio
import dataclasses
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

COUNTS = "counts:billing"
PROCESS = (
    f"{socket.gethostname()}:{os.getpid()}:{time.time_ns()}"  # a process that is started again is another one
)


async def store_counts(redis: Redis, consumer: Any) -> None:
    """Store the counts of this process. If Redis does not answer, the next call stores these, too."""
    with suppress(RedisError):
        await redis.hset(COUNTS, PROCESS, json.dumps(dataclasses.asdict(consumer.counts)))


async def consume_and_count(redis: Redis, consumer: Any, handler: Callable[..., Awaitable[Any]]) -> None:
    """Run a consumer, and store its counts. With an inbox the handler gets the transaction first."""

    async def each_second() -> None:
        while True:
            await store_counts(redis, consumer)
            await asyncio.sleep(1.0)

    async def stored_first(*delivery: Any) -> None:
        await store_counts(redis, consumer)
        await handler(*delivery)

    storing = asyncio.create_task(each_second())
    try:
        await consumer.run(stored_first)
    finally:
        storing.cancel()
        await store_counts(redis, consumer)


async def total(redis: Redis, result: str) -> int:
    """Return how many deliveries had a result, such as "duplicate", over all processes."""
    return sum(json.loads(counts)[result] for counts in await redis.hvals(COUNTS))
