"""Waiting for a part of the store to answer again: by news of its return, and for a given time at most."""

from __future__ import annotations

import asyncio


class OutageWaiters:
    """The callers whom a part of the store has refused, and who wait for its return.

    Each has a future of its own: to stop waiting for a future that ten thousand share takes half a millisecond.
    """

    def __init__(self) -> None:
        self.waiting: dict[bytes, set[asyncio.Future[None]]] = {}
        """A future for each caller that waits, by the name of the part of the store."""

    def count(self, part: bytes) -> int:
        """Return how many wait for this part."""
        return len(self.waiting.get(part, ()))

    async def wait(self, part: bytes, seconds: float) -> None:
        """Wait until the part is back, for `seconds` at most."""
        loop = asyncio.get_running_loop()
        is_back: asyncio.Future[None] = loop.create_future()
        waiting = self.waiting.setdefault(part, set())
        waiting.add(is_back)
        alarm = loop.call_later(seconds, wake, is_back)
        try:
            await is_back
        finally:
            alarm.cancel()
            waiting.discard(is_back)
            if not waiting and self.waiting.get(part) is waiting:
                del self.waiting[part]

    def is_back(self, part: bytes) -> None:
        """Wake all who wait for this part."""
        for future in self.waiting.pop(part, ()):
            wake(future)

    def are_back(self) -> None:
        """Wake everybody: the gate is closed."""
        for part in list(self.waiting):
            self.is_back(part)


def wake(future: asyncio.Future[None]) -> None:
    """End the wait for a future."""
    if not future.done():
        future.set_result(None)
