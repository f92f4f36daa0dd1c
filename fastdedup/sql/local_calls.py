"""The calls of `once` that are under way in this process: of each key one goes ahead, the others wait behind it.

A duplicate that waits at the gate asks it three times: it hears of the owner, puts itself on the owner's list, and
gets the result. Behind a call of its own process it asks once, for the result. Who is first, the gate says as ever.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from threading import Event
from typing import Any, Generic, TypeVar

E = TypeVar("E")
T = TypeVar("T")


class Ends(Generic[E]):
    """For each key the end of the call that is ahead. `new_end` makes one."""

    def __init__(self, new_end: Callable[[], E]) -> None:
        self._new_end = new_end
        # Mutable: the ends by their keys.
        self._ends: dict[str, E] = {}

    def ahead(self, name: str) -> tuple[E, bool]:
        """Return the end of the call that is ahead, and whether that is this call: `over` then ends it."""
        end = self._ends.get(name)
        if end is not None:
            return end, False
        own = self._new_end()
        end = self._ends.setdefault(name, own)  # another thread may have been quicker
        return end, end is own

    def over(self, name: str) -> None:
        """Let the next call of a key go ahead."""
        self._ends.pop(name, None)


class LocalCalls(Ends["asyncio.Future[None]"]):
    """The calls of one decorated async function."""

    def __init__(self) -> None:
        super().__init__(lambda: asyncio.get_running_loop().create_future())

    async def run(self, name: str, call: Callable[[], Coroutine[Any, Any, T]], wait: float) -> T:
        """Run a call; before, wait for `wait` seconds at most for the end of the call that is ahead of it."""
        end, is_own = self.ahead(name)
        if is_own:
            return await self._run_ahead(name, call, end)
        if end.get_loop() is asyncio.get_running_loop():
            # Once only: a thousand duplicates that wait for one after the other would wake each other.
            await asyncio.wait([end], timeout=wait)
        return await call()

    async def _run_ahead(
        self, name: str, call: Callable[[], Coroutine[Any, Any, T]], end: asyncio.Future[None]
    ) -> T:
        try:
            return await call()
        finally:
            self.over(name)
            end.set_result(None)


class ThreadCalls(Ends[Event]):
    """The calls of one decorated function that is not async. Each waits in its own thread."""

    def __init__(self) -> None:
        super().__init__(lambda: Event())  # the class is looked up late: gevent may replace it
        # Mutable: the process whose calls these are.
        self._pid = os.getpid()

    def run(self, name: str, call: Callable[[], T], wait: float) -> T:
        """Run a call; before, wait for `wait` seconds at most for the end of the call that is ahead of it."""
        if self._pid != os.getpid():  # forked: the calls of the former process never end here
            self._pid, self._ends = os.getpid(), {}
        end, is_own = self.ahead(name)
        if is_own:
            return self._run_ahead(name, call, end)
        end.wait(wait)
        return call()

    def _run_ahead(self, name: str, call: Callable[[], T], end: Event) -> T:
        pid = self._pid
        try:
            return call()
        finally:
            self.over(name)  # first, as a signal's handler may raise between two statements
            if os.getpid() == pid:  # else forked by the call, maybe while a waiter held the end's lock
                end.set()
