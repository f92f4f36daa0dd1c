"""The background thread: one event loop for each process, with the asyncio `Dedup`s of all `sync.Dedup`s.

Main path: `LoopThread.run`. The thread starts when it is first needed, and again if it has died. A fork leaves it
behind: the child's first call starts a thread of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from .. import forking
from ..errors import UnavailableError, UsageError
from ..tasks import running_loop
from .native import Thread, patched, start_thread
from .work import Wait, Work, awaiting, blocked_greenlet, blocked_thread

T = TypeVar("T")

_LOOK = 0.5
"""Seconds between two checks whether the thread that a caller waits for still lives."""
GRACE = 5.0
"""Seconds that an answer may be late before the thread counts as stuck."""
_GOODBYE = 1.0
"""The longest that the interpreter's end waits, in seconds."""


class Closable(Protocol):
    """An open `Dedup`; `BackgroundDedup` is one."""

    async def aclose(self) -> None:
        """Close it; a second call does nothing."""


class LoopThread:
    """An event loop in a daemon thread. Only `run` and `arun` are called outside of that thread."""

    def __init__(self) -> None:
        self._forks = forking.forks
        self.loop = new_loop()
        """The event loop that runs in the thread."""
        # Mutable: the calls to begin; whether the loop was woken for them; whether it must end; what to close then,
        # held weakly, so that a `Dedup` without users is collected, and then closed like in any other event loop.
        self._inbox: deque[Work[Any]] = deque()
        self._told = False
        self._ending = False
        self._to_close: WeakSet[Closable] = WeakSet()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = start_thread(self._main, "fastdedup-sync")

    def give_up(self) -> None:
        """End its thread, if there is one, because its start was interrupted and no caller will use it."""
        self._ending = True
        self.tell(self.loop.stop)

    @property
    def alive(self) -> bool:
        """False once the thread has ended, or in a child that did not inherit it."""
        # Not the thread's is_alive(): if a signal interrupts it, it reports a dead thread (Python's bpo-45274).
        return not self.forked and not self._ending

    @property
    def forked(self) -> bool:
        """True in a child that was forked since: its parent has the thread."""
        return self._forks != forking.forks

    def run(
        self,
        make: Callable[[], Awaitable[T]],
        seconds: float,
        discard: Callable[[T], None] | None = None,
        *,
        settles: bool = False,
    ) -> T:
        """Run `await make()` in the loop, and block until it is done.

        An interrupt (KeyboardInterrupt, a worker's timeout signal) cancels it, and passes its result to `discard`.

        Args:
            make: called in the loop's thread; its result is awaited.
            discard: called there with the result, if the caller no longer waits.
            seconds: the longest that it takes by its own deadlines; GRACE later the thread counts as stuck.
            settles: it records what has happened, so an interrupt cancels it only once it has begun.

        Raises:
            UnavailableError: the background thread is stuck or dead.
            UsageError: called in the background thread itself, by a callback.
        """
        self._check_caller()
        wait, tell = blocked_greenlet() if patched() else blocked_thread()
        work = Work(make, discard, tell, settles=settles)
        try:
            self._post(work)
            self._wait(wait, seconds + GRACE)
        except BaseException:
            self._leave(work, settles=settles)
            raise
        if work.error is not None:
            try:
                raise work.error
            finally:
                del work  # the traceback holds this frame, which holds the error
        return work.result

    async def arun(
        self,
        make: Callable[[], Awaitable[T]],
        seconds: float,
        discard: Callable[[T], None] | None = None,
        *,
        settles: bool = False,
    ) -> T:
        """Do the same as `run`, awaited in an event loop. A cancellation here is like an interrupt there."""
        self._check_caller()
        wait, tell = awaiting()
        work = Work(make, discard, tell, settles=settles)
        ends = time.monotonic() + seconds + GRACE
        try:
            self._post(work)
            while not await wait(min(_LOOK, max(ends - time.monotonic(), 0.0))):
                self._check_hope(ends, seconds + GRACE)
        except BaseException:
            self._leave(work, settles=settles)
            raise
        if work.error is not None:
            try:
                raise work.error
            finally:
                del work
        return work.result

    def post(self, make: Callable[[], Awaitable[object]]) -> None:
        """Run `await make()` in the loop, and do not wait for it."""
        self._post(Work(make, None, lambda: None, settles=True))

    def tell(self, callback: Callable[[], object]) -> None:
        """Call a function in the thread soon, and do not wait for that. It must not raise."""
        try:
            self.loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed: the caller sees that the thread has ended
            self._told = False

    def close_at_end(self, opened: Closable) -> None:
        """Close this object when the interpreter ends, if it still exists."""
        self._to_close.add(opened)

    def end(self) -> None:
        """Close every open `Dedup`, and stop, within `_GOODBYE` seconds (atexit calls this)."""
        if not self.alive:
            return
        with contextlib.suppress(Exception):
            wait, tell = blocked_thread()
            self._post(Work(self._close_all, None, tell))
            wait(_GOODBYE)
        self._ending = True
        self.tell(self.loop.stop)
        if self._thread is not None:
            self._thread.join(_GOODBYE)

    def _wait(self, wait: Wait, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while not wait(min(_LOOK, max(ends - time.monotonic(), 0.0))):
            self._check_hope(ends, seconds)

    def _check_caller(self) -> None:
        if running_loop() is self.loop:
            raise UsageError(
                "this was called in fastdedup's background thread (by on_event=, say), and would wait for itself: "
                "call it in another thread"
            )

    def _check_hope(self, ends: float, seconds: float) -> None:
        """Raise UnavailableError if no answer can come any more; else wake the loop for the waiting calls."""
        if not self.alive:
            raise UnavailableError("fastdedup's background thread has ended: the next call starts another")
        if time.monotonic() >= ends:
            raise UnavailableError(
                f"fastdedup's background thread gave no answer within {seconds:g} s: is something blocking it, "
                "an on_event= callback or a codec?"
            )
        self.tell(self._begin)  # the call that should wake it may have been interrupted

    def _post(self, work: Work[Any]) -> None:
        self._inbox.append(work)
        if not self._told:
            self._told = True  # before the wake-up: the loop sees a second writer's work too
            self.tell(self._begin)

    def _leave(self, work: Work[Any], *, settles: bool) -> None:
        """Give up a call, because its caller no longer waits for it."""
        if settles:
            self._inbox.append(work)  # the interrupt may have come before it was there; it begins only once
        self.tell(work.give_up)
        self.tell(self._begin)  # or the interrupt came between `_told` and the wake-up

    def _begin(self) -> None:
        self._told = False  # before the look: work that comes from now on wakes the loop again
        inbox = self._inbox
        while inbox:
            inbox.popleft().start(self.loop)

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self._ending = True
            while self._inbox:
                self._inbox.popleft().fail(UnavailableError("fastdedup's background thread has ended"))
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.close()

    async def _close_all(self) -> None:
        await asyncio.gather(*(each.aclose() for each in tuple(self._to_close)), return_exceptions=True)


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's if uvloop is installed.

    Raises:
        UsageError: uvloop is not installed, and Python's own loop cannot be used under gevent.
    """
    try:
        import uvloop
    except ImportError:
        # It would wait with gevent's `select`, in a hub that does not survive a fork.
        if patched() or patched("select"):
            raise UsageError(
                "fastdedup.sync needs uvloop under gevent, which is not installed: pip install 'fastdedup[uvloop]'"
            ) from None
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


_lock = threading.RLock()
_current: LoopThread | None = None


def current() -> LoopThread:
    """Return this process's background thread; start it if it does not run."""
    global _current
    thread = _current
    if thread is not None and thread.alive:
        return thread
    with _lock:
        if _current is None or not _current.alive:
            thread = LoopThread()
            try:
                thread.start()
                if _current is None or not _current.alive:
                    _current = thread
            finally:  # also if a signal's handler has started another one meanwhile
                if _current is not thread:
                    thread.give_up()
        return _current


def starting() -> threading.RLock:
    """Return the lock under which this process makes its `Dedup`s and its thread."""
    return _lock


def _after_fork() -> None:
    """Forget the thread and the lock in a forked child: the thread is gone, and may have held the lock."""
    global _lock, _current
    _lock = threading.RLock()
    if _current is not None:
        forking.leave_behind(_current)
    _current = None


def _at_exit() -> None:
    if _current is not None:
        _current.end()


forking.in_each_child(_after_fork)
atexit.register(_at_exit)
