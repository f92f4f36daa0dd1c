"""Work that goes on when its caller is cancelled: settling a claim must end, whoever waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class KeptTasks:
    """The tasks of one connection that end by themselves; `len` tells how many there are."""

    def __init__(self) -> None:
        # Mutable: those that have not ended; those among them whose time is over.
        self._tasks: set[asyncio.Task[Any]] = set()
        self._late: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin some work."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._late.discard(task)
        if not task.cancelled():
            task.exception()  # a caller that was cancelled does not fetch it; the lease ends by itself

    async def wait(self, timeout: float) -> None:
        """Wait until they have ended, for `timeout` seconds at most."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)

    def end_their_time(self) -> None:
        """Count those that still run as late from now on: they go no further than their next try."""
        self._late.update(self._tasks)

    def is_late(self, task: asyncio.Task[Any] | None) -> bool:
        """True for a task whose time is over."""
        return task in self._late

    def cancel(self) -> None:
        """Cancel them."""
        for task in tuple(self._tasks):
            task.cancel()
