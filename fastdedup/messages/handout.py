"""Handing messages from a broker's client to the tasks that handle them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Handout(Generic[T]):
    """Messages for the next free task, in order. Not bounded itself: the broker sends no more than its prefetch.

    Unlike a queue, or a stream of anyio, a free task gets the message itself, not a wake-up to look for one.
    """

    def __init__(self) -> None:
        # Mutable: messages without a task, or tasks without a message.
        self._messages: deque[T] = deque()
        self._tasks: deque[asyncio.Future[T]] = deque()

    def give(self, message: T) -> None:
        """Give a message to the task that has been free for the longest time."""
        while self._tasks:
            task = self._tasks.popleft()
            if not task.done():  # else it was cancelled
                task.set_result(message)
                return
        self._messages.append(message)

    async def take(self) -> T:
        """Return the next message."""
        if self._messages:
            return self._messages.popleft()
        task: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._tasks.append(task)
        return await task
