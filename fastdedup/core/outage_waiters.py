"""Waiting until a part of the store answers again, or until a given time is over."""

from __future__ import annotations

import asyncio


class OutageWaiters:
    """The callers that a part of the store has refused, and that wait for its return.

    Each has a future of its own: if ten thousand shared one, it would take half a millisecond to stop waiting for it.
    """

    def __init__(self) -> None:
        self.waiting: dict[bytes, set[asyncio.Future[None]]] = {}
        """A future for each caller that waits, by the name of the part of the store."""

    def count(self, part: bytes) -> int:
        """Return how many callers wait for this part."""
        return len(self.waiting.get(part, ()))

    async def wait(self, part: bytes, seconds: float) -> None:
        """Wait until the part is back, for at most `seconds`."""
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
        """Wake all callers that wait for this part."""
        for future in self.waiting.pop(part, ()):
            wake(future)

    def are_back(self) -> None:
        """Wake all callers, because the gate is closed."""
        for part in list(self.waiting):
            self.is_back(part)


def wake(future: asyncio.Future[None]) -> None:
    """End the wait for a future."""
    if not future.done():
        future.set_result(None)
