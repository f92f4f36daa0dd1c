"""A consumer whose task was cancelled went on for ever where its broker's client had lost the cancellation.

`asyncio.wait_for` of Python 3.11 drops a cancellation that comes as its awaitable has just ended. redis-py sends each
command by it, nats-py waits for each reply by it. So the loop that reads, in the cancelled task itself, read on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest
from redis.asyncio import Redis

from fastdedup import Dedup
from fastdedup.integrations.redis_streams import Consumer, entry_id

STREAM, GROUP = "forever-orders", "billing"


class LosingRedis(Redis):
    """Has a task cancelled once in the middle of a command, and loses that, as `asyncio.wait_for` does."""

    def lose(self, command: str, task: asyncio.Task[None]) -> None:
        self.losing = command
        self.task = task

    async def xinfo_groups(self, *given: Any, **options: Any) -> Any:
        return await self._or_lose("xinfo_groups", super().xinfo_groups(*given, **options))

    async def xreadgroup(self, *given: Any, **options: Any) -> Any:
        return await self._or_lose("xreadgroup", super().xreadgroup(*given, **options))

    async def _or_lose(self, name: str, command: Coroutine[Any, Any, Any]) -> Any:
        found = await command
        if self.losing == name:
            self.losing = ""
            self.task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        return found


@pytest.mark.parametrize("command", ["xinfo_groups", "xreadgroup"])
async def test_a_cancelled_consumer_ends_though_its_client_lost_that(redis_url: str, command: str) -> None:
    async def on_order(entry: Any) -> None: ...

    async def consume() -> None:
        async with Consumer(redis, dedup, stream=STREAM, group=GROUP, key=entry_id) as consumer:
            made.append(consumer)
            await consumer.run(on_order)

    made: list[Consumer] = []
    async with LosingRedis.from_url(redis_url) as redis, Dedup(redis_url, namespace="r") as dedup:
        await redis.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        await redis.xadd(STREAM, {"id": "order-7"})  # so that the first read does not wait
        running = asyncio.create_task(consume())
        redis.lose(command, running)
        _, pending = await asyncio.wait([running], timeout=5.0)
        for each in made:
            each.stop()
        await asyncio.wait([running])
        await redis.delete(STREAM)
    assert not pending
    assert running.cancelled()
