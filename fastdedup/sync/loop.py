"""The background thread: one event loop a process, in which the asyncio gates of all `sync.Dedup`s live.

Main path: `LoopThread.run`. It is started when first needed, started again where it has died, and left
behind by a fork: the child's first call starts one of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from ..errors import UnavailableError, UsageError

T = TypeVar("T")

_LOOK = 0.5
"""Seconds between two looks whether the thread that is waited for still lives."""
GRACE = 5.0
"""Seconds that an answer may come later than its deadline before the thread counts as stuck."""
_GOODBYE = 1.0
"""Seconds that the interpreter's end waits at the most."""


class Work(Generic[T]):
    """One call on its way to the loop and back.

    Args:
        make: called in the loop's thread; what it returns is awaited.
        discard: called there with a result that its caller did not wait for.
    """

    __slots__ = ("_answered", "_discard", "_given_up", "_make", "_task", "error", "result")

    def __init__(self, make: Callable[[], Awaitable[T]], discard: Callable[[T], None] | None) -> None:
        self._make = make
        self._discard = discard
        self._answered = threading.Lock()
        self._answered.acquire()
        # Mutable, in the loop's thread alone but for what is read once `_answered` is free.
        self._task: asyncio.Task[None] | None = None
        self._given_up = False
        self.result: T
        self.error: BaseException | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin, in the loop's thread."""
        if not self._given_up:
            self._task = loop.create_task(self._run(), name="fastdedup-sync")

    def fail(self, error: BaseException) -> None:
        """It will not be run."""
        self.error = error
        self._tell()

    def wait(self, seconds: float) -> bool:
        """Return whether it was answered within some seconds; interrupted by signals."""
        return self._answered.acquire(timeout=seconds)

    def give_up(self) -> None:
        """Nobody waits any more (in the loop's thread): cancel it, or take back what it got."""
        self._given_up = True
        if self._task is not None and not self._task.done():
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

    def _tell(self) -> None:
        self._answered.release()


class AwaitedWork(Work[T]):
    """One call whose caller awaits it in another event loop, and must not block that."""

    __slots__ = ("_arrived", "_caller")

    def __init__(self, make: Callable[[], Awaitable[T]], discard: Callable[[T], None] | None) -> None:
        super().__init__(make, discard)
        self._caller = asyncio.get_running_loop()
        self._arrived = asyncio.Event()

    async def arrive(self, seconds: float) -> bool:
        """Return whether it was answered within some seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        return self._arrived.is_set()

    def _tell(self) -> None:
        super()._tell()
        with contextlib.suppress(RuntimeError):  # the caller's loop is closed: nobody waits
            self._caller.call_soon_threadsafe(self._arrived.set)


class LoopThread:
    """An event loop in a daemon thread. Everything of it but `run` belongs to that thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = new_loop()
        # Mutable: what waits to be begun; has the loop been told; is it to end; what to close at the end.
        self._inbox: deque[Work[Any]] = deque()
        self._told = False
        self._ending = False
        self._closers: set[Callable[[], Awaitable[None]]] = set()
        self._thread = threading.Thread(target=self._main, name="fastdedup-sync", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """False once the thread has ended, or in a child that did not inherit it."""
        return self._thread.is_alive() and self.pid == os.getpid() and not self._ending

    def run(
        self,
        make: Callable[[], Awaitable[T]],
        seconds: float,
        discard: Callable[[T], None] | None = None,
    ) -> T:
        """Run `await make()` in the loop; block until it is done.

        Interrupted (KeyboardInterrupt, a worker's timeout signal), it is cancelled, and what it got is handed
        to `discard`.

        Args:
            make: called in the loop's thread; what it returns is awaited.
            discard: called there with a result that nobody waits for any more.
            seconds: that it takes at the most by its own deadlines; GRACE later the thread counts as stuck.

        Raises:
            UnavailableError: the background thread is stuck or dead.
            UsageError: called in the background thread itself, by a callback.
        """
        self._check_caller()
        work = Work(make, discard)
        try:
            self._post(work)
            self._wait(work, seconds + GRACE)
        except BaseException:
            self._tell(work.give_up)
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
    ) -> T:
        """Do as `run`, awaited in an event loop, which is not blocked. Cancelled, it is as if interrupted."""
        self._check_caller()
        work = AwaitedWork(make, discard)
        ends = time.monotonic() + seconds + GRACE
        try:
            self._post(work)
            while not await work.arrive(min(_LOOK, max(ends - time.monotonic(), 0.0))):
                self._check_hope(ends, seconds + GRACE)
        except BaseException:
            self._tell(work.give_up)
            raise
        if work.error is not None:
            try:
                raise work.error
            finally:
                del work
        return work.result

    def on_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Close this when the interpreter ends."""
        self._closers.add(close)

    def off_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """It is closed."""
        self._closers.discard(close)

    def end(self) -> None:
        """Close what is open, and stop; at the interpreter's end, and no longer than `_GOODBYE`."""
        if not self.alive:
            return
        with contextlib.suppress(Exception):
            closing = Work(self._close_all, None)
            self._post(closing)
            closing.wait(_GOODBYE)
        self._ending = True
        self._tell(self._loop.stop)
        self._thread.join(_GOODBYE)

    def _wait(self, work: Work[Any], seconds: float) -> None:
        ends = time.monotonic() + seconds
        while not work.wait(min(_LOOK, max(ends - time.monotonic(), 0.0))):
            self._check_hope(ends, seconds)

    def _check_caller(self) -> None:
        if threading.get_ident() == self._thread.ident:
            raise UsageError(
                "called in fastdedup's own background thread (by on_event=, say): it would wait for itself"
            )

    def _check_hope(self, ends: float, seconds: float) -> None:
        """Raise UnavailableError where waiting longer makes no sense."""
        if not self.alive:
            raise UnavailableError("fastdedup's background thread has ended; the next call starts another")
        if time.monotonic() >= ends:
            raise UnavailableError(
                f"fastdedup's background thread gave no answer within {seconds:g} s: is something blocking it, "
                "an on_event= callback or a codec?"
            )

    def _post(self, work: Work[Any]) -> None:
        self._inbox.append(work)
        if not self._told:
            self._told = True  # before telling: a second writer's work is seen by the same look
            self._tell(self._begin)

    def _tell(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed: whoever waits sees that the thread has ended
            self._told = False

    def _begin(self) -> None:
        self._told = False  # before looking: what is put in from now on tells again
        inbox = self._inbox
        while inbox:
            inbox.popleft().start(self._loop)

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._ending = True
            while self._inbox:
                self._inbox.popleft().fail(UnavailableError("fastdedup's background thread has ended"))
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()

    async def _close_all(self) -> None:
        await asyncio.gather(*(close() for close in tuple(self._closers)), return_exceptions=True)


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's, where that exists."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


_lock = threading.RLock()
_current: LoopThread | None = None
_left_behind: list[object] = []
"""Of the process that forked us. Kept, not collected: closing it here could disturb what it shares with its owner."""


def current() -> LoopThread:
    """Return this process's background thread, starting it if need be."""
    global _current
    thread = _current
    if thread is not None and thread.alive:
        return thread
    with _lock:
        if _current is None or not _current.alive:
            _current = LoopThread()
        return _current


def starting() -> threading.RLock:
    """Return the lock under which this process makes what it needs."""
    return _lock


def leave_behind(thing: object) -> None:
    """Keep what another process, or a thread that has died, has left us from being collected."""
    _left_behind.append(thing)


def _after_fork() -> None:
    """In the child: the thread is gone, and the lock may be held by one that is."""
    global _lock, _current
    _lock = threading.RLock()
    if _current is not None:
        _left_behind.append(_current)
    _current = None


def _at_exit() -> None:
    if _current is not None:
        _current.end()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
