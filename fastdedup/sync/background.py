"""Where a synchronous gate lives: in this process's background thread, since this process first used it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from ..errors import UsageError
from ..gateway import Dedup
from .loop import LoopThread, current, leave_behind, starting

T = TypeVar("T")


class BackgroundDedup:
    """An asyncio gate and the thread that it is opened in, when first used."""

    def __init__(self, thread: LoopThread, dedup: Dedup) -> None:
        self.dedup = dedup
        self._thread = thread
        # Mutable, in the thread: is the gate open; the attempt to open it.
        self._is_open = False
        self._opening: asyncio.Task[Dedup] | None = None

    @property
    def here(self) -> bool:
        """False in a process that was forked since, and where the thread has died."""
        return self._thread.alive

    def run(
        self, make: Callable[[], Awaitable[T]], seconds: float, discard: Callable[[T], None] | None = None
    ) -> T:
        """Run in the thread with the gate open; arguments and errors as for `LoopThread.run`.

        Raises:
            ConfigError: the store can never be used as it is set up.
        """
        return self._thread.run(self._opened_first(make), seconds, discard)

    async def arun(
        self, make: Callable[[], Awaitable[T]], seconds: float, discard: Callable[[T], None] | None = None
    ) -> T:
        """Do as `run`, awaited in any event loop."""
        return await self._thread.arun(self._opened_first(make), seconds, discard)

    def _opened_first(self, make: Callable[[], Awaitable[T]]) -> Callable[[], Awaitable[T]]:
        if self._is_open:
            return make

        async def work() -> T:
            await self._open()
            return await make()

        return work

    def close(self, seconds: float) -> None:
        """Answer what was accepted, then close the gate."""
        self._thread.run(self._close, seconds)

    async def _open(self) -> None:
        if self._is_open:
            return
        if self._opening is None:
            self._opening = asyncio.ensure_future(self.dedup.open())
            self._opening.add_done_callback(self._opened)
        await asyncio.shield(self._opening)  # of one who gives up, the others need it

    def _opened(self, task: asyncio.Task[Dedup]) -> None:
        self._opening = None
        if not task.cancelled() and task.exception() is None:
            self._is_open = True
            self._thread.on_end(self._close)

    async def _close(self) -> None:
        self._thread.off_end(self._close)
        await self.dedup.aclose()


class PerProcess:
    """Finds a gate its home in whichever process it is used.

    Args:
        make: a new gate with the same settings.
        reusable: False where that is not possible: its store is an object of one process.
        seconds: that opening, an operation or closing takes at the most.
    """

    def __init__(self, make: Callable[[], Dedup], *, reusable: bool, seconds: float) -> None:
        self.template = make()
        self.seconds = seconds
        self._make = make
        self._reusable = reusable
        # Mutable: the home in this process, or in the one that forked it.
        self._background: BackgroundDedup | None = None
        self._closed = False

    def background(self) -> BackgroundDedup:
        """Return the home in this process.

        Raises:
            UsageError: closed, or of another process.
        """
        background = self._background
        if background is not None and background.here and not self._closed:
            return background
        with starting():
            return self._make_here()

    def close(self) -> None:
        """Close it here, for good."""
        background, self._closed = self._background, True
        if background is not None and background.here:
            background.close(self.seconds)

    def _make_here(self) -> BackgroundDedup:
        if self._closed:
            raise UsageError("this Dedup is closed; make a new one")
        former = self._background
        if former is not None and former.here:
            return former
        if former is not None:
            if not self._reusable:
                raise UsageError(
                    "this Dedup has a store object, which lives in one process: give it a URL instead"
                )
            leave_behind(former)
        self._background = BackgroundDedup(current(), self.template if former is None else self._make())
        return self._background


class Bound(Generic[T]):
    """Something that a gate makes, made again for each home of that gate."""

    def __init__(self, per_process: PerProcess, make: Callable[[Dedup], T]) -> None:
        self.per_process = per_process
        self.make = make
        # Mutable: what was made, and of which gate. At once, so that mistakes are told where they are.
        self._made = (per_process.template, make(per_process.template))

    def get(self) -> tuple[BackgroundDedup, T]:
        """Return the home in this process, and what belongs there."""
        background = self.per_process.background()
        made = self._made
        if made[0] is not background.dedup:
            made = self._made = (background.dedup, self.make(background.dedup))
        return background, made[1]

    @property
    def latest(self) -> T:
        """What was made last, wherever."""
        return self._made[1]
