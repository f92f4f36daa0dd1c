"""Threads and locks of the operating system, even if gevent has replaced Python's own by greenlets.

The background loop needs a thread of its own: in a greenlet it would stop every other greenlet. Each call checks
`patched`, because a server may replace the threads late: gunicorn does so in each worker, after it has forked it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

from ..errors import UsageError


class Thread(Protocol):
    """A thread that runs; `threading.Thread` is one."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most `timeout` seconds."""


def patched(module: str = "threading") -> bool:
    """Return whether gevent has replaced a module's functions by its own: by default, threads by greenlets."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched(module))


def new_lock() -> Any:
    """Return a lock that blocks its thread, with all greenlets of it."""
    return _original("allocate_lock")() if patched() else threading.Lock()


def start_thread(target: Callable[[], None], name: str) -> Thread:
    """Start a daemon thread.

    Raises:
        UsageError: eventlet has replaced Python's threads.
    """
    _refuse_eventlet()
    if patched():
        return _NativeThread(target)
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


class _NativeThread:
    """A daemon thread that starts at once, for a process in which `threading.Thread` would be a greenlet."""

    def __init__(self, target: Callable[[], None]) -> None:
        self._target = target
        self._running = new_lock()
        self._running.acquire()
        _original("start_new_thread")(self._run, ())

    def join(self, timeout: float | None = None) -> None:
        if self._running.acquire(timeout=-1 if timeout is None else timeout):
            self._running.release()

    def _run(self) -> None:
        try:
            self._target()
        finally:
            self._running.release()


def _original(name: str) -> Any:
    """Return Python's own function of `_thread`."""
    return sys.modules["gevent.monkey"].get_original("_thread", name)


def _refuse_eventlet() -> None:
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and patcher.is_monkey_patched("thread"):
        raise UsageError(
            "fastdedup.sync does not work under eventlet, which has replaced Python's threads: use gevent or "
            "threads (gunicorn -k gevent, or -k gthread)"
        )
