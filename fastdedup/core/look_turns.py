"""Turns: some waiting claims look at a time, and the others queue. Each costs the same, however many queue."""

from __future__ import annotations

import asyncio
from collections import deque


class LookTurns:
    """Turns for at most `most` claims at a time. Call `take`, or else await `queue`; then `give_back`.

    No `asyncio.Semaphore`: each release of one passes all turns that are given and not yet taken, so that eight
    thousand waiting claims spent seconds there.
    """

    def __init__(self, most: int) -> None:
        # Mutable: how many may look now, and the queue of the others. A turn goes to the queue first.
        self._free = most
        self._queue: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        """How many claims queue."""
        return len(self._queue)

    def take(self) -> bool:
        """Take a turn; return False if none is free."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def queue(self) -> None:
        """Wait for a turn, and take it. A cancelled caller has none."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was given the turn, and is cancelled before it takes it
                self.give_back()
            raise

    def give_back(self) -> None:
        """End a turn: the next in the queue gets it."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
