"""A call on its way to the background loop and back, for each way in which a caller waits."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Generic, TypeVar

from ..errors import UnavailableError
from .native import new_lock

T = TypeVar("T")


class LoopWork(ABC, Generic[T]):
    """A call on its way to the loop and back. It runs in the caller's context, so that its spans are in that trace.

    Args:
        make: called in the loop's thread; its result is awaited.
        discard: called there with the result, if the caller no longer waits.
        settles: it is begun in any case, and only then cancelled if the caller no longer waits.
    """

    __slots__ = ("_context", "_discard", "_given_up", "_make", "_settles", "_task", "error", "result")

    def __init__(
        self, make: Callable[[], Awaitable[T]], discard: Callable[[T], None] | None, *, settles: bool = False
    ) -> None:
        self._make = make
        self._discard = discard
        self._settles = settles
        self._context = copy_context()
        # Mutable, by the loop's thread only; the caller reads the result after its wake-up.
        self._task: asyncio.Task[None] | None = None
        self._given_up = False
        self.result: T
        self.error: BaseException | None = None
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """Make what the caller waits for."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin, in the loop's thread, unless it has begun or need not."""
        if self._task is None and (self._settles or not self._given_up):
            self._task = loop.create_task(self._run(), name="fastdedup-sync", context=self._context)
            if self._given_up:
                loop.call_soon(self._task.cancel)  # behind its first step

    def fail(self, error: BaseException) -> None:
        """Answer with an error instead of running, if it has not begun."""
        if self._task is None and self.error is None:
            self.error = error
            self._tell()

    def give_up(self) -> None:
        """Cancel it, or discard its result, because the caller no longer waits (in the loop's thread)."""
        self._given_up = True
        if self._task is not None and not self._task.done():
            if self._settles:
                asyncio.get_running_loop().call_soon(self._task.cancel)  # behind its first step
            else:
                self._task.cancel()
        elif self._task is not None and self.error is None and self._discard is not None:
            self._discard(self.result)

    async def _run(self) -> None:
        try:
            self.result = await self._make()
        except asyncio.CancelledError:
            self.error = UnavailableError("fastdedup's background thread is ending")
        except BaseException as error:  # noqa: BLE001 -- raised again in the caller's thread
            self.error = error
        if self._given_up and self.error is None and self._discard is not None:
            self._discard(self.result)
        self._tell()

    @abstractmethod
    def _tell(self) -> None:
        """Wake the caller, in the loop's thread, because the answer is there."""


class Work(LoopWork[T]):
    """A call whose caller blocks its thread."""

    __slots__ = ("_answered",)

    def _prepare(self) -> None:
        self._answered = new_lock()
        self._answered.acquire()

    def wait(self, seconds: float) -> bool:
        """Wait for the answer; return False if it does not come within `seconds`. Signals interrupt it."""
        return bool(self._answered.acquire(timeout=seconds))

    def _tell(self) -> None:
        self._answered.release()


class AwaitedWork(LoopWork[T]):
    """A call whose caller awaits it in another event loop, which must not block."""

    __slots__ = ("_arrived", "_caller")

    def _prepare(self) -> None:
        self._caller = asyncio.get_running_loop()
        self._arrived = asyncio.Event()

    async def arrive(self, seconds: float) -> bool:
        """Wait for the answer; return False if it does not come within `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        return self._arrived.is_set()

    def _tell(self) -> None:
        with contextlib.suppress(RuntimeError):  # the caller's loop is closed: no caller waits
            self._caller.call_soon_threadsafe(self._arrived.set)


class GreenletWork(LoopWork[T]):
    """A call whose caller is a greenlet: the other greenlets of its thread run while it waits."""

    __slots__ = ("_arrived", "_hub")

    def _prepare(self) -> None:
        from gevent import get_hub
        from gevent.event import Event

        self._hub = get_hub()
        self._arrived = Event()

    def wait(self, seconds: float) -> bool:
        """Wait for the answer; return False if it does not come within `seconds`. Killing the greenlet ends it."""
        return bool(self._arrived.wait(seconds))

    def _tell(self) -> None:
        loop = self._hub.loop
        if loop is not None:  # else the caller's thread has ended: no caller waits
            loop.run_callback_threadsafe(self._arrived.set)
