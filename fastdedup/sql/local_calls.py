"""The calls of `once` that are under way in this process: of each key one goes ahead, the others wait behind it.

A duplicate that waits at the gate asks it three times: it hears of the owner, puts itself on the owner's list, and
gets the result. Behind a call of its own process it asks once, for the result. Who is first, the gate says as ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LocalCalls:
    """The calls of one decorated function."""

    def __init__(self) -> None:
        # Mutable: for each key the end of the call that is ahead.
        self._ends: dict[str, asyncio.Future[None]] = {}

    async def run(self, name: str, call: Callable[[], Coroutine[Any, Any, T]], wait: float) -> T:
        """Run a call; before, wait for `wait` seconds at most for the end of the call that is ahead of it."""
        loop = asyncio.get_running_loop()
        end = self._ends.get(name)
        if end is None:
            return await self._run_ahead(name, call, loop.create_future())
        if end.get_loop() is loop:
            # Once only: a thousand duplicates that wait for one after the other would wake each other.
            await asyncio.wait([end], timeout=wait)
        return await call()

    async def _run_ahead(
        self, name: str, call: Callable[[], Coroutine[Any, Any, T]], end: asyncio.Future[None]
    ) -> T:
        self._ends[name] = end
        try:
            return await call()
        finally:
            del self._ends[name]
            end.set_result(None)
