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
from .loop_end import LoopEnd


class Submits(Protocol):
    """An engine, as far as this concerns it."""

    def submit(self, op: Op) -> asyncio.Future[Reply]:
        """Send an operation."""


class Reopened(Protocol):
    """A connection that can be opened and closed again and again."""

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

    def running_engine(self) -> Submits:
        """Return the engine."""


class Afterwards:
    """Does what is left to do for claims when their gate is closed.

    Args:
        make: returns a new connection to the gate's store.
        kept: the gate's tasks that end by themselves.
        timeout: seconds for which the loop's end waits for them.
    """

    def __init__(self, make: Callable[[], Reopened], kept: set[asyncio.Task[Any]], timeout: float) -> None:
        self._make = make
        self._kept = kept
        self._timeout = timeout
        # Mutable: the connection, once it was needed; how many use it; whose turn it is to open or close it; what
        # waits for the loop's end.
        self._connection: Reopened | None = None
        self._users = 0
        self._lock = asyncio.Lock()
        self._loop_end: LoopEnd | None = None
        self.is_over = False
        """True once the gate is open again, or its event loop has ended."""

    def watch_loop(self) -> None:
        """Wait for the kept tasks when the event loop ends."""
        if self._loop_end is None:
            self._loop_end = LoopEnd.awaited(self._end)

    async def run(self, op: Op) -> Reply:
        """Execute an operation that settles or renews a claim, or reads its record."""
        try:
            connection = await self._enter()
            return await connection.running_engine().submit(op)
        finally:
            await self._leave()

    async def replaced(self) -> None:
        """The gate is open again, and does all this itself."""
        self.is_over = True
        if self._loop_end is not None:
            await self._loop_end.forget()

    # Not by an asynchronous context manager: that is a generator, which the loop's end would end first.

    async def _enter(self) -> Reopened:
        self._users += 1
        async with self._lock:
            connection = self._connection = self._connection or self._make()
            if connection.is_closing:
                await connection.aclose()
            if not connection.is_open:
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
        if self._kept:
            await asyncio.wait(self._kept, timeout=self._timeout)
        self.is_over = True
        for _ in range(2):  # a task that is cancelled may leave one that tells of it
            for task in tuple(self._kept):
                task.cancel()
            if self._kept:
                await asyncio.wait(self._kept, timeout=self._timeout)
        if self._connection is not None:
            with contextlib.suppress(Exception):  # nobody is there to be told
                await self._connection.aclose()
