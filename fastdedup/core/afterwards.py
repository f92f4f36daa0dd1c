"""Work that goes on when its caller is cancelled, and the rest of the work for claims when their gate is closed.

A claim may outlive `aclose()`: a task may run beside `async with dedup:`, and `asyncio.run` cancels it only later.
Its outcome is still recorded and its key is still freed, over a connection that is opened for that, and closed after
the last of these claims.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from ..kernel.operations import Op, Reply
from .loop_end import LoopEnd, at_loop_end

T = TypeVar("T")


class Opened(Protocol):
    """The part of a connection that this module uses."""

    @property
    def is_open(self) -> bool:
        """True between `open` and `aclose`."""

    @property
    def is_closing(self) -> bool:
        """True while it is being closed."""

    async def open(self) -> None:
        """Open it."""

    async def aclose(self) -> None:
        """Close it; a second call does nothing."""

    def running_engine(self) -> Any:
        """Return the engine."""


class Afterwards:
    """The work of one connection that must end; `len` is the number of its tasks.

    Args:
        make: returns a new connection to the gate's store.
        timeout: seconds for which the loop's end waits for the tasks.
    """

    def __init__(self, make: Callable[[], Opened], timeout: float) -> None:
        self._make = make
        self._timeout = timeout
        # Mutable: the tasks that have not ended; those among them that closing has waited for.
        self._tasks: set[asyncio.Task[Any]] = set()
        self._late: set[asyncio.Task[Any]] = set()
        # Mutable: the connection, once it was needed; the number of its users; the lock to open or close it; the
        # generator that waits for the loop's end.
        self._connection: Opened | None = None
        self._users = 0
        self._lock = asyncio.Lock()
        self._loop_end: LoopEnd | None = None
        self.is_over = False
        """True once the gate is open again, or its event loop has ended."""

    def __len__(self) -> int:
        return len(self._tasks)

    # Work that goes on when its caller is cancelled

    def keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin a task for some work."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._late.discard(task)
        if not task.cancelled():
            task.exception()  # a cancelled caller does not fetch it; the lease ends by itself

    async def wait(self, timeout: float) -> None:
        """Wait until the tasks have ended, for at most `timeout` seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)

    def end_their_time(self) -> None:
        """Count the tasks that still run as late from now on: their next try is the last."""
        self._late.update(self._tasks)

    def is_late(self) -> bool:
        """True in a task whose time is over."""
        return asyncio.current_task() in self._late

    # After closing

    def watch_loop(self) -> None:
        """After the gate is closed: wait for the tasks when the event loop ends."""
        if self._loop_end is None:
            self._loop_end = at_loop_end(self._end)

    def submit(self, op: Op, taker: object = None) -> asyncio.Future[Reply]:
        """Send an operation that settles or renews a claim, or reads its record, like an engine."""
        self.watch_loop()
        return self.keep(self._run(op))

    async def _run(self, op: Op) -> Reply:
        try:
            connection = await self._enter()
            reply: Reply = await connection.running_engine().submit(op)
        finally:
            await self._leave()
        return reply

    async def replaced(self) -> None:
        """Stop, because the gate is open again and does all this itself."""
        self.is_over = True
        if self._loop_end is not None:
            await self._loop_end.aclose()

    # Not an asynchronous context manager, because that is a generator, which the loop's end would end first.

    async def _enter(self) -> Opened:
        self._users += 1
        async with self._lock:
            connection = self._connection
            if connection is not None and connection.is_closing:
                await connection.aclose()  # that was interrupted
            if connection is None or not connection.is_open:
                connection = self._connection = self._make()
                await connection.open()
        return connection

    async def _leave(self) -> None:
        self._users -= 1
        async with self._lock:
            if not self._users and self._connection is not None:
                await self._connection.aclose()

    async def _end(self) -> None:
        """Give the tasks a moment at the event loop's end, then end them."""
        if self.is_over:
            return
        await self.wait(self._timeout)
        self.is_over = True
        for _ in range(2):  # a cancelled task may leave another one that logs it
            for task in tuple(self._tasks):
                task.cancel()
            await self.wait(self._timeout)
        if self._connection is not None:
            with contextlib.suppress(Exception):  # no caller is left to get the error
                await self._connection.aclose()
