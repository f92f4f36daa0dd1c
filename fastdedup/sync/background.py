"""The asyncio `Dedup` behind a synchronous one: each process opens its own, in its background thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Generic, TypeVar

from ..claim import Claim
from ..core.calls import ClaimCall
from ..core.together import count_parts
from ..decorated import DecoratedFunctions
from ..errors import UsageError
from ..forking import leave_behind
from ..gateway import Dedup
from .loop import LoopThread, current, starting

T = TypeVar("T")
R = TypeVar("R")


class BackgroundDedup:
    """An asyncio `Dedup`, and the thread that opens it when it is first used."""

    def __init__(self, thread: LoopThread, dedup: Dedup) -> None:
        self.dedup = dedup
        self.thread = thread
        """The thread that opens it."""
        # Mutable, in the thread: whether it is open; the task that opens it.
        self._is_open = False
        self._opening: asyncio.Task[Dedup] | None = None

    def run(
        self,
        make: Callable[[], Awaitable[T]],
        seconds: float,
        discard: Callable[[T], None] | None = None,
        *,
        settles: bool = False,
    ) -> T:
        """Open it if it is not open, then do the work of `LoopThread.run`.

        Raises:
            ConfigError: the store cannot be used with its present set-up.
        """
        return self.thread.run(self._opened_first(make), seconds, discard, settles=settles)

    def make(
        self,
        call: ClaimCall,
        seconds: float,
        answer: Callable[[Claim], T],
        discard: Callable[[T], None],
    ) -> T:
        """Run a claim like `run`, and return the result of `answer` for it; a claim that never began is given up.

        `answer` is called in the thread, so the caller gets a complete result.
        """

        async def made() -> T:
            return answer(await call)

        try:
            return self.run(made, seconds + call.wait, discard)
        except BaseException:
            call.close()
            raise

    async def arun(
        self,
        make: Callable[[], Awaitable[T]],
        seconds: float,
        discard: Callable[[T], None] | None = None,
        *,
        settles: bool = False,
    ) -> T:
        """Do the same as `run`, awaited in any event loop."""
        return await self.thread.arun(self._opened_first(make), seconds, discard, settles=settles)

    def post(self, make: Callable[[], Awaitable[object]]) -> None:
        """See `LoopThread.post`."""
        self.thread.post(make)

    def _opened_first(self, make: Callable[[], Awaitable[T]]) -> Callable[[], Awaitable[T]]:
        if self._is_open:
            return make

        async def work() -> T:
            await self._open()
            return await make()

        return work

    def close(self, seconds: float) -> None:
        """Answer the accepted operations, then close the `Dedup`."""
        self.thread.run(self.aclose, seconds, settles=True)

    async def _open(self) -> None:
        if self._is_open:
            return
        if self._opening is None:
            # In a context of its own: its tasks live for long, and would keep the first caller's request.
            self._opening = asyncio.get_running_loop().create_task(self._opened_anew(), context=Context())
            self._opening.add_done_callback(self._opened)
        await asyncio.shield(self._opening)  # not cancelled with one caller, because the others wait for it

    async def _opened_anew(self) -> Dedup:
        connection = self.dedup.gate.connection
        if connection.is_open or connection.is_closing:  # the caller that closes it was interrupted
            await self.dedup.aclose()
        return await self.dedup.open()

    def _opened(self, task: asyncio.Task[Dedup]) -> None:
        self._opening = None
        if not task.cancelled() and task.exception() is None:
            self._is_open = True
            self.thread.close_at_end(self)

    async def aclose(self) -> None:
        """Close the `Dedup`, in the thread. Closing twice is fine."""
        await self.dedup.aclose()


class PerProcess:
    """Makes the `BackgroundDedup` of each process.

    Args:
        make: returns a new asyncio `Dedup` with the same settings.
        reusable: False if `make` works in one process only, because the store is an object.
        seconds: the longest that opening, an operation or closing takes.
    """

    def __init__(self, make: Callable[[], Dedup], *, reusable: bool, seconds: float) -> None:
        self.template = make()
        self.seconds = seconds
        self.decorated = DecoratedFunctions()
        self._make = make
        self._reusable = reusable
        self._on_made: list[Callable[[Dedup], object]] = []
        # Mutable: the one of this process, or of the process that forked it; whether it was closed.
        self._background: BackgroundDedup | None = None
        self._closed = False

    def seconds_of(self, operations: int) -> float:
        """Return the longest that a list of so many operations takes: its parts are sent one after another."""
        return self.seconds * max(count_parts(operations), 1)

    def background(self) -> BackgroundDedup:
        """Return the one of this process.

        Raises:
            UsageError: it is closed, or belongs to another process.
        """
        background = self._background
        if background is not None and background.thread.alive and not self._closed:
            return background
        with starting():
            return self._make_here()

    def close(self) -> None:
        """Close the one of this process, until `reopen`."""
        background, self._closed = self._background, True
        if background is not None and background.thread.alive:
            background.close(self.seconds)

    def reopen(self) -> None:
        """Let it be used again after `close`."""
        with starting():
            former = self._background
            if self._closed and former is not None and former.thread.alive:
                # Not the former object, because a thread that began before the close may still use it.
                self._background = BackgroundDedup(current(), former.dedup)
            self._closed = False

    def _make_here(self) -> BackgroundDedup:
        if self._closed:
            raise UsageError("this Dedup is closed: open it again first, by open() or `with`")
        thread = current()  # first: a signal's handler that comes at the start may make one
        former = self._background
        if former is not None and former.thread.alive:
            return former
        if former is not None:
            if not self._reusable:
                raise UsageError(
                    "this Dedup has a store object, which lives in one process: give it a URL instead"
                )
            leave_behind(former)
        self._background = BackgroundDedup(thread, self.template if former is None else self._again())
        return self._background

    def _again(self) -> Dedup:
        dedup = self._make()
        for callback in self._on_made:
            callback(dedup)
        return dedup

    @property
    def present(self) -> Dedup:
        """The one that was made last."""
        return self.template if self._background is None else self._background.dedup

    @property
    def is_open(self) -> bool:
        """True while the `Dedup` of this process is open, since its first use or `open`."""
        background = self._background
        return background is not None and background.thread.alive and background.dedup.is_open

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Begin unopened in this process, and restore the old state afterwards; those made meanwhile are closed."""
        kept = self._background, self._closed, self._reusable, tuple(self._on_made)
        self._background, self._closed, self._reusable = None, False, False
        try:
            yield
        finally:
            self.close()
            self._background, self._closed, self._reusable, self._on_made[:] = kept

    def on_made(self, callback: Callable[[Dedup], object]) -> None:
        """Call `callback` with the `Dedup` of this process before it is opened, and of each process to come."""
        callback(self.template)
        self._on_made.append(callback)


class Bound(Generic[T]):
    """An object that is made from an asyncio `Dedup`, and made again in each process."""

    def __init__(self, per_process: PerProcess, make: Callable[[Dedup], T]) -> None:
        self.per_process = per_process
        self.make = make
        # Mutable: the object, and the `Dedup` that it was made from. Made at once, so that mistakes show here.
        self._made = (per_process.template, make(per_process.template))

    def get(self) -> tuple[BackgroundDedup, T]:
        """Return this process's `BackgroundDedup`, and the object that was made from it."""
        background = self.per_process.background()
        made = self._made
        if made[0] is not background.dedup:
            made = self._made = (background.dedup, self.make(background.dedup))
        return background, made[1]

    def run(self, call: Callable[[T], Awaitable[R]], *, wait: float = 0.0, operations: int = 1) -> R:
        """Return the result of `call` for this process's object, awaited in the background thread.

        `wait`: seconds that it may take on top of those of its `operations`.
        """
        background, made = self.get()
        return background.run(lambda: call(made), self.per_process.seconds_of(operations) + wait)

    @property
    def latest(self) -> T:
        """The object that was made last, in any process."""
        return self._made[1]
