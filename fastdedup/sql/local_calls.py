"""The calls of `once` that are under way in this process: of each key one goes ahead, the others wait behind it.

A duplicate that waits at the gate asks it three times: it hears of the owner, puts itself on the owner's list, and
gets the result. Behind a call of its own process it gets that call's result, which is committed, and asks nobody.
Where that call fails, or takes too long, it asks the gate: who is first, the gate says as ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from threading import Event
from time import perf_counter
from typing import Any, Generic, TypeVar

from .. import forking

E = TypeVar("E")
Answer = Callable[[], Any]
"""Gives a call's result: another object to each caller, as they may change it."""
Name = tuple[str, bytes | None]
"""A key at the gate, and the fingerprint: a call with another one is no duplicate."""
OnWait = Callable[[float, bool], None]
"""Hears that a call has waited behind another one for so many seconds, and whether it got that one's answer."""


class Ends(Generic[E]):
    """For each key the end of the call that is ahead, which brings its answer. `new_end` makes one."""

    def __init__(self, new_end: Callable[[], E]) -> None:
        self._new_end = new_end
        self.ends: dict[Name, E] = {}
        """The end of each call that others of this process wait for, by its key."""

    def ahead(self, name: Name) -> tuple[E, bool]:
        """Return the end of the call that is ahead, and whether that is this call: `over` then ends it."""
        end = self.ends.get(name)
        if end is not None:
            return end, False
        own = self._new_end()
        end = self.ends.setdefault(name, own)  # another thread may have been quicker
        return end, end is own

    def over(self, name: Name, end: E) -> None:
        """Let the next call of a key go ahead, where this end is that of the call that is ahead."""
        if self.ends.get(name) is end:
            self.ends.pop(name, None)


class LocalCalls(Ends["asyncio.Future[Answer | None]"]):
    """The calls of one decorated async function."""

    def __init__(self, on_wait: OnWait) -> None:
        super().__init__(lambda: asyncio.get_running_loop().create_future())
        self._on_wait = on_wait

    async def run(self, name: Name, call: Callable[[], Coroutine[Any, Any, Answer]], wait: float) -> Answer:
        """Return the answer of the call that is ahead, or run this call.

        It is run where no other is ahead; or where that has failed, or has not ended within `wait` seconds.
        """
        end, is_own = self.ahead(name)
        if is_own:
            return await self._run_ahead(name, call, end)
        if end.get_loop() is asyncio.get_running_loop():
            began = perf_counter()
            # Once only: a thousand duplicates that wait for one after the other would wake each other.
            await asyncio.wait([end], timeout=wait)
            answer = end.result() if end.done() else None
            self._on_wait(perf_counter() - began, answer is not None)
            if answer is not None:
                return answer
        return await call()

    async def _run_ahead(
        self, name: Name, call: Callable[[], Coroutine[Any, Any, Answer]], end: asyncio.Future[Answer | None]
    ) -> Answer:
        answer: Answer | None = None
        try:
            answer = await call()
            return answer
        finally:
            self.over(name, end)
            end.set_result(answer)


class ThreadEnd:
    """The end of a call that threads wait for."""

    __slots__ = ("answer", "event")

    def __init__(self) -> None:
        self.event = Event()
        # Mutable: set before the event.
        self.answer: Answer | None = None


class ThreadCalls(Ends[ThreadEnd]):
    """The calls of one decorated function that is not async. Each waits in its own thread."""

    def __init__(self, on_wait: OnWait) -> None:
        super().__init__(ThreadEnd)
        self._on_wait = on_wait
        # Mutable: whose calls these are, because each process has another number of forks behind it.
        self._forks = forking.forks

    def run(self, name: Name, call: Callable[[], Answer], wait: float) -> Answer:
        """Return the answer of the call that is ahead, or run this call: see `LocalCalls.run`."""
        if self._forks != forking.forks:  # the calls of the former process never end here
            self._forks, self.ends = forking.forks, {}
        end, is_own = self.ahead(name)
        if is_own:
            return self._run_ahead(name, call, end)
        began = perf_counter()
        if not end.event.wait(wait):
            self.over(name, end)  # later calls do not wait for it: an interrupt may have kept it from telling
        self._on_wait(perf_counter() - began, end.answer is not None)
        return call() if end.answer is None else end.answer

    def _run_ahead(self, name: Name, call: Callable[[], Answer], end: ThreadEnd) -> Answer:
        forks = self._forks
        try:
            end.answer = call()
            return end.answer
        finally:
            try:
                self.over(name, end)  # first: whoever comes later must not get this answer
            finally:  # also where a signal's handler raises there
                # Not in a child that the call has forked, maybe while a waiter held the event's lock.
                if forking.forks == forks:
                    end.event.set()
