"""The one subscription of a store: its callers share the first attempt, and none pays for the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import thread_time
from typing import Any

import pytest

from fastdedup.stores.redis.connection import RedisConnection
from fastdedup.stores.redis.listener import Listener

from ..waiting import wait_until

FEW = 2_000
TIMES = 8


async def seconds_to_leave(callers: int) -> float:
    """Return the CPU time in which so many callers stop waiting for the first attempt."""
    trying = asyncio.Event()

    async def connect(_: Callable[[Any], None]) -> RedisConnection:
        trying.set()
        await asyncio.Event().wait()  # never: the server is frozen
        raise AssertionError

    listener = Listener(connect, 60.0)
    tasks = [asyncio.ensure_future(listener.start(lambda wire: None)) for _ in range(callers)]
    await trying.wait()
    since = thread_time()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    took = thread_time() - since
    await listener.aclose()
    return took


async def test_many_callers_leave_the_first_attempt_at_the_cost_of_each() -> None:
    """A list of 12,000 keys ended 6 s after its wait, because its claims left the attempt by one shared future."""
    few = min([await seconds_to_leave(FEW) for _ in range(3)])
    many = min([await seconds_to_leave(FEW * TIMES) for _ in range(2)])
    assert many < few * TIMES * 3


async def test_all_callers_get_the_error_of_the_first_attempt() -> None:
    begin = asyncio.Event()

    async def connect(_: Callable[[Any], None]) -> RedisConnection:
        await begin.wait()
        raise ConnectionError("refused")

    listener = Listener(connect, 60.0)
    heard: list[bytes | None] = []
    tasks = [asyncio.ensure_future(listener.start(heard.append)) for _ in range(3)]
    tasks[0].cancel()
    await wait_until(tasks[0].done, description="the first caller has left")
    begin.set()
    for task in tasks[1:]:
        with pytest.raises(ConnectionError, match="refused"):
            await task
    await listener.aclose()
