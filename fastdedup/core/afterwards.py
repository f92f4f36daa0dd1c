"""Settles, renews and frees the claims of a gate after it was closed.

A claim may outlive `aclose()`: a task works on beside `async with dedup:`, and `asyncio.run` cancels it only later.
Its outcome is recorded and its key is freed all the same, over a connection that is opened for that, and closed
behind the last of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Protocol

from ..kernel.operations import Op, Reply
from .kept import KeptTasks
from .loop_end import LoopEnd


class Opened(Protocol):
    """A connection, as far as this concerns it."""

    @property
    def is_open(self) -> bool:
        """True between `open` and `aclose`."""

    @property
    def is_closing(self) -> bool:
        """True while it is being closed."""

    async def open(self) -> None:
        """Open it."""

    async def aclose(self) -> None:
        """Close it; twice is fine."""

    def running_engine(self) -> Any:
        """Return the engine."""


class Afterwards:
    """Does what is left to do for claims when their gate is closed.

    Args:
        make: returns a new connection to the gate's store.
        kept: the gate's tasks that end by themselves.
        timeout: seconds for which the loop's end waits for them.
    """

    def __init__(self, make: Callable[[], Opened], kept: KeptTasks, timeout: float) -> None:
        self._make = make
        self._kept = kept
        self._timeout = timeout
        # Mutable: the connection, once it was needed; how many use it; whose turn it is to open or close it; what
        # waits for the loop's end.
        self._connection: Opened | None = None
        self._users = 0
        self._lock = asyncio.Lock()
        self._loop_end: LoopEnd | None = None
        self.is_over = False
        """True once the gate is open again, or its event loop has ended."""

    def watch_loop(self) -> None:
        """Wait for the kept tasks when the event loop ends."""
        if self._loop_end is None:
            self._loop_end = LoopEnd.awaited(self._end)

    def submit(self, op: Op, taker: Any = None) -> asyncio.Future[Reply]:
        """Send an operation that settles or renews a claim, or reads its record."""
        self.watch_loop()
        return self._kept.add(self._run(op))

    async def _run(self, op: Op) -> Reply:
        try:
            connection = await self._enter()
            reply: Reply = await connection.running_engine().submit(op)
        finally:
            await self._leave()
        return reply

    async def replaced(self) -> None:
        """The gate is open again, and does all this itself."""
        self.is_over = True
        if self._loop_end is not None:
            await self._loop_end.forget()

    # Not by an asynchronous context manager: that is a generator, which the loop's end would end first.

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
        """The event loop ends: give the kept tasks a moment, then end them."""
        if self.is_over:
            return
        await self._kept.wait(self._timeout)
        self.is_over = True
        for _ in range(2):  # a task that is cancelled may leave one that tells of it
            self._kept.cancel()
            await self._kept.wait(self._timeout)
        if self._connection is not None:
            with contextlib.suppress(Exception):  # nobody is there to be told
                await self._connection.aclose()
