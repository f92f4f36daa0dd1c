"""Helpers for asyncio: the loop that runs here, and functions that wait for tasks and end them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

_TURNS: Final = 20
"""Turns of the loop in which each step to a store is done: connecting, logging in, one exchange of commands."""
_LONGEST_TURN: Final = 0.5
_MEASURED: Final = 3


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, or None.

    `asyncio.get_running_loop` raises instead. Callers and libraries would then see its error as the one that is being
    handled: asgiref carries it into other threads and raises it there.
    """
    return asyncio._get_running_loop()


async def patience(seconds: float) -> float:
    """Return a timeout for steps to a store: `seconds`, and some turns of the loop, as long as they are now.

    A loop whose callers take all its time is no slow store. If only the seconds counted, a program whose callers ask
    again and again could never find a store that is back. A loop that was blocked once is not such a loop: so the
    shortest of some turns counts. The turns add 10 seconds at most, because a store may also be gone.
    """
    loop, turn = asyncio.get_running_loop(), _LONGEST_TURN
    for _ in range(_MEASURED):
        since = loop.time()
        await asyncio.sleep(0)
        turn = min(turn, loop.time() - since)
    return seconds + _TURNS * turn


async def stop(task: asyncio.Task[Any]) -> None:
    """Cancel a task again and again until it ends: redis-py may mistake a cancellation for its own timeout.

    A task of an event loop that is closed never ends, and is left alone.
    """
    if task.get_loop().is_closed():
        cast(Any, task)._log_destroy_pending = False
        return
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.05)


async def outcome_of(task: asyncio.Task[T]) -> T:
    """Return the result of a task that several callers share, and that `stop` may end.

    Not with a shield: then the callers would be cancelled with the task, although they were not cancelled themselves.

    Raises:
        ConnectionError: the task was stopped, because the store is closed.
    """
    await asyncio.wait([task])
    if task.cancelled():
        raise ConnectionError("the store is closed")
    return task.result()


async def until_done(future: asyncio.Future[Any]) -> None:
    """Wait for a future to end, even if the caller is cancelled meanwhile; the cancellation is raised at the end."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


class Crowd:
    """Callers that wait for one event, each by a future of its own; the first that came goes on first.

    If thousands shared one future, each that leaves would search for itself among all: 16,000 took 5 s to leave.
    """

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: dict[asyncio.Future[None], None] = {}  # a dict keeps their order

    def __len__(self) -> int:
        """How many callers wait."""
        return len(self._futures)

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until `wake` is called, for at most `seconds`; None: without an end."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._futures[future] = None
        alarm = None if seconds is None else loop.call_later(seconds, wake, future)
        try:
            await future
        finally:
            if alarm is not None:
                alarm.cancel()
            del self._futures[future]

    def wake(self) -> None:
        """Wake all callers that wait now."""
        for future in self._futures:
            wake(future)


def wake(future: asyncio.Future[None]) -> bool:
    """Wake the caller that waits for this future; False if that was done already."""
    if future.done():
        return False
    future.set_result(None)
    return True


async def wait_then_stop(tasks: Collection[asyncio.Task[Any]], return_when: str) -> set[asyncio.Task[Any]]:
    """Wait like `asyncio.wait` and return the ended tasks; the others are cancelled, and have ended on return.

    It is in this module, which is not compiled, because mypyc's code crashes if an `await` in `finally` is cancelled.
    """
    done: set[asyncio.Task[Any]] = set()
    try:
        if tasks:
            done, _ = await asyncio.wait(tasks, return_when=return_when)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return done
