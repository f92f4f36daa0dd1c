"""A call on its way to the background loop and back, and the ways in which a caller waits for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Generic, TypeVar

from ..errors import UnavailableError
from .native import new_lock

T = TypeVar("T")
Wait = Callable[[float], bool]
"""Waits for the answer for some seconds; returns False if it does not come."""
Tell = Callable[[], object]
"""Wakes the caller, in the loop's thread, because the answer is there."""


class Work(Generic[T]):
    """A call on its way to the loop and back. It runs in the caller's context, so that its spans are in that trace.

    Args:
        make: called in the loop's thread; its result is awaited.
        discard: called there with the result, if the caller no longer waits.
        tell: see `Tell`.
        settles: it is begun in any case, and only then cancelled if the caller no longer waits.
    """

    __slots__ = (
        "_context",
        "_discard",
        "_given_up",
        "_make",
        "_settles",
        "_task",
        "_tell",
        "error",
        "result",
    )

    def __init__(
        self,
        make: Callable[[], Awaitable[T]],
        discard: Callable[[T], None] | None,
        tell: Tell,
        *,
        settles: bool = False,
    ) -> None:
        self._make = make
        self._discard = discard
        self._tell = tell
        self._settles = settles
        self._context = copy_context()
        # Mutable, by the loop's thread only; the caller reads the result after its wake-up.
        self._task: asyncio.Task[None] | None = None
        self._given_up = False
        self.result: T
        self.error: BaseException | None = None

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


def blocked_thread() -> tuple[Wait, Tell]:
    """Return the ways to wait and to tell for a caller that blocks its thread. Signals interrupt the waiting."""
    answered = new_lock()
    answered.acquire()
    return lambda seconds: bool(answered.acquire(timeout=seconds)), answered.release


def blocked_greenlet() -> tuple[Wait, Tell]:
    """Return the same for a greenlet: the others of its thread run while it waits. Killing it ends the waiting."""
    from gevent import get_hub
    from gevent.event import Event

    hub, arrived = get_hub(), Event()

    def tell() -> None:
        loop = hub.loop
        if loop is not None:  # else the caller's thread has ended: no caller waits
            loop.run_callback_threadsafe(arrived.set)

    return lambda seconds: bool(arrived.wait(seconds)), tell


def awaiting() -> tuple[Callable[[float], Awaitable[bool]], Tell]:
    """Return the same for a caller in another event loop, which must not block: it awaits its `Wait`."""
    caller, arrived = asyncio.get_running_loop(), asyncio.Event()

    async def wait(seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await arrived.wait()
        return arrived.is_set()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # the caller's loop is closed: no caller waits
            caller.call_soon_threadsafe(arrived.set)

    return wait, tell
