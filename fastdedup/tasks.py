"""Helpers for asyncio: the loop that runs here, and functions that end tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, or None.

    `asyncio.get_running_loop` raises in its place. What a caller or a library then finds as the error that is being
    handled is that one: asgiref carries it into other threads and raises it there.
    """
    return asyncio._get_running_loop()


async def stop(task: asyncio.Task[Any]) -> None:
    """Cancel a task again and again until it ends: redis-py may mistake a cancellation for its own timeout."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.05)


async def wait_then_stop(tasks: Collection[asyncio.Task[Any]], return_when: str) -> set[asyncio.Task[Any]]:
    """Wait as `asyncio.wait` does and return what has ended; whatever else runs is cancelled and has ended as well.

    In this module, which is not compiled: mypyc's code crashes where an `await` within `finally` is cancelled.
    """
    done: set[asyncio.Task[Any]] = set()
    try:
        if tasks:
            done, _ = await asyncio.wait(tasks, return_when=return_when)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return done
