"""The calls of `once` that are under way in this process: one call of each key runs, and the others wait for it.

A duplicate that waits at the gate asks it three times: it learns of the owner, puts itself on the owner's list, and
gets the result. If it waits for a call of its own process, it gets that call's committed result, and asks no store.
If that call fails, or takes too long, the duplicate asks the gate, which decides as usual which call is first.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from threading import Event
from time import perf_counter
from typing import Any

from .. import forking
from ..gateway import Dedup
from ..model import Outcome

Answer = Callable[[], Any]
"""Returns a call's result: a new object for each caller, because callers may change it."""
Name = tuple[str, bytes | None]
"""A key at the gate, and the fingerprint: a call with another fingerprint is not a duplicate."""
OnWait = Callable[[float, bool], None]
"""Called with the seconds that a call has waited for another one, and whether it got that call's answer."""


def count_wait(dedup: Dedup, seconds: float, answered: bool) -> None:
    """Count a call that has waited for another one of this process, in the way that the gate counts a wait.

    `answered`: it got the result of that call, so it does not ask the gate.
    """
    observers, namespace = dedup.gate.observers, dedup.settings.namespace
    observers.waited(namespace, seconds)
    if answered and (counters := observers.counters) is not None:
        counters.observe(namespace, "claim", Outcome.SUCCEEDED.value, seconds)


class CallEnd(ABC):
    """The end of a running call, for the calls behind it. `answer` stays None if the call fails."""

    answer: Answer | None = None

    @abstractmethod
    async def wait(self, seconds: float) -> bool:
        """Wait for it, for so many seconds at most. Return False at once if the call runs in another event loop."""

    @abstractmethod
    def set(self) -> None:
        """Wake the calls that wait."""


class TaskEnd(CallEnd):
    """The end of a call of an async function."""

    _future: asyncio.Future[None] | None = None
    """Made for the first task that waits: most calls have no other behind them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def wait(self, seconds: float) -> bool:
        """Wait in the event loop."""
        if self._loop is not asyncio.get_running_loop():
            return False
        if self._future is None:
            self._future = self._loop.create_future()
        await asyncio.wait([self._future], timeout=seconds)
        return True

    def set(self) -> None:
        """Wake the tasks that wait."""
        if self._future is not None:
            self._future.set_result(None)


class ThreadEnd(CallEnd):
    """The end of a call of a function that is not async. Each call waits in its own thread."""

    def __init__(self) -> None:
        self._event = Event()

    async def wait(self, seconds: float) -> bool:
        """Block the thread: it never suspends."""
        self._event.wait(seconds)
        return True

    def set(self) -> None:
        """Wake the threads that wait."""
        self._event.set()


class LocalCalls:
    """The calls of one decorated function.

    Args:
        new_end: makes a call's end: `TaskEnd`, or `ThreadEnd` for a function that is not async.
        on_wait: told of each call that has waited.
    """

    def __init__(self, new_end: Callable[[], CallEnd], on_wait: OnWait) -> None:
        self._new_end = new_end
        self._on_wait = on_wait
        # Mutable: the process of these calls, by its number of forks, which differs in each process.
        self._forks = forking.forks
        self.ends: dict[Name, CallEnd] = {}
        """The end of each running call of this process, by its key."""

    async def run(self, name: Name, call: Callable[[], Coroutine[Any, Any, Answer]], wait: float) -> Answer:
        """Return the answer of the running call, or run this call.

        This call runs if no other call of the key does, or if that one has failed or not ended in `wait` seconds.
        """
        if self._forks != forking.forks:  # the calls of the former process never end here
            self._forks, self.ends = forking.forks, {}
        end, is_own = self.ahead(name)
        if is_own:
            return await self._run_ahead(name, call, end)
        began = perf_counter()
        # Wait only once: a thousand duplicates that wait for one after the other would wake each other.
        if await end.wait(wait):
            self._on_wait(perf_counter() - began, end.answer is not None)
            if end.answer is not None:
                return end.answer
            self.over(name, end)  # later calls do not wait for it: an interrupt may have stopped its answer
        return await call()

    def ahead(self, name: Name) -> tuple[CallEnd, bool]:
        """Return the end of the running call, and whether this call is that one: then `over` ends it."""
        end = self.ends.get(name)
        if end is not None:
            return end, False
        own = self._new_end()
        end = self.ends.setdefault(name, own)  # another thread may have been quicker
        return end, end is own

    def over(self, name: Name, end: CallEnd) -> None:
        """Let the next call of a key run, if this is the end of the running call."""
        if self.ends.get(name) is end:
            self.ends.pop(name, None)

    async def _run_ahead(
        self, name: Name, call: Callable[[], Coroutine[Any, Any, Answer]], end: CallEnd
    ) -> Answer:
        forks = self._forks
        try:
            end.answer = await call()
            return end.answer
        finally:
            try:
                self.over(name, end)  # first, because later calls must not get this answer
            finally:  # also if a signal's handler raises there
                # Not in a child that the call has forked, maybe while a waiter held the event's lock.
                if forking.forks == forks:
                    end.set()
