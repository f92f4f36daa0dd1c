"""Turns: some at a time go on, and the others queue. Each costs the same, however many queue."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any


class LookTurns:
    """An async context manager for at most `most` callers at a time; it yields True to one that had to queue.

    No `asyncio.Semaphore`: each release of one passes all turns that are given and not yet taken, so that eight
    thousand waiting claims spent seconds there.
    """

    def __init__(self, most: int) -> None:
        # Mutable: how many may go on at once, and the queue of the others. A turn goes to the queue first.
        self._free = most
        self._queue: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        """How many callers queue."""
        return len(self._queue)

    async def __aenter__(self) -> bool:
        if self._free:
            self._free -= 1
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was given the turn, and is cancelled before it takes it
                self._pass_on()
            raise
        return True

    async def __aexit__(self, *error: Any) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
