"""A call to a broker that many wait for at once: those who ask while it is under way share the next one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio


class SharedCall:
    """Calls with the ids of all who ask, one call at a time.

    A call for each id would take a connection of the broker's client for each.

    Args:
        call: awaited with the ids of one call. Its errors are those of its own task.
        start: starts an async function in a task that outlives those who wait.
    """

    def __init__(self, call: Callable[[list[str]], Awaitable[None]], start: Callable[..., Any]) -> None:
        self._call = call
        self._start = start
        # Mutable: whether a task makes calls, the ids of the next one, and what says that it has ended.
        self._is_at_work = False
        self._ids: list[str] = []
        self._ended = anyio.Event()

    async def ask(self, *ids: str) -> None:
        """Return once a call with these ids has ended, well or not. Cancelled, the ids are sent all the same."""
        self._ids += ids
        ended = self._ended
        if not self._is_at_work:
            self._is_at_work = True
            self._start(self._work)
        await ended.wait()

    async def _work(self) -> None:
        try:
            while self._ids:
                ids, ended = self._ids, self._ended
                self._ids, self._ended = [], anyio.Event()
                try:
                    await self._call(ids)
                finally:
                    ended.set()
        finally:
            self._is_at_work = False
            self._ended.set()  # after an error: no caller waits for a call that is never made
            self._ended = anyio.Event()
