"""Waiting until a part of the store answers again, or until a given time is over."""

from __future__ import annotations

from ..tasks import Crowd


class OutageWaiters:
    """The callers that a part of the store has refused, and that wait for its return."""

    def __init__(self) -> None:
        self.waiting: dict[bytes, Crowd] = {}
        """The callers that wait, by the name of the part of the store."""

    def count(self, part: bytes) -> int:
        """Return how many callers wait for this part."""
        return len(self.waiting.get(part, ()))

    async def wait(self, part: bytes, seconds: float) -> None:
        """Wait until the part is back, for at most `seconds`."""
        crowd = self.waiting.setdefault(part, Crowd())
        try:
            await crowd.wait(seconds)
        finally:
            if not crowd and self.waiting.get(part) is crowd:
                del self.waiting[part]

    def is_back(self, part: bytes) -> None:
        """Wake all callers that wait for this part."""
        crowd = self.waiting.pop(part, None)
        if crowd is not None:
            crowd.wake()

    def are_back(self) -> None:
        """Wake all callers, because the gate is closed."""
        for part in list(self.waiting):
            self.is_back(part)
