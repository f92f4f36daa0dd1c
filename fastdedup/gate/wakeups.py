"""Waiting for a key to be freed or settled: by news, not by polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Wakeups:
    """One future a key, shared by all who wait for it in this process."""

    def __init__(self) -> None:
        self._freed: dict[bytes, asyncio.Future[None]] = {}
        self._count: dict[bytes, int] = {}
        self.overheard_by: set[Callable[[bytes | None], None]] = set()
        """Told of each key as well: who waits in other processes, behind the sidecar."""

    @contextmanager
    def watch(self, wire: bytes) -> Iterator[asyncio.Future[None]]:
        """Yield a future that is done when the key is next freed. Enter *before* asking how it stands."""
        future = self._freed.get(wire)
        if future is None or future.done():
            future = self._freed[wire] = asyncio.get_running_loop().create_future()
        self._count[wire] = self._count.get(wire, 0) + 1
        try:
            yield future
        finally:
            self._count[wire] -= 1
            if not self._count[wire]:
                del self._count[wire]
                self._freed.pop(wire, None)

    def close(self) -> None:
        """Wake nobody any more: the event loop of those who wait is gone. They still leave `watch` one by one."""
        self._freed.clear()
        self.overheard_by.clear()

    def freed(self, wire: bytes | None) -> None:
        """Wake who waits for this key; None: everybody, as news may have been missed."""
        for future in list(self._freed.values()) if wire is None else (self._freed.get(wire),):
            if future is not None and not future.done():
                future.set_result(None)
        for on_freed in tuple(self.overheard_by):
            try:
                on_freed(wire)
            except Exception as fault:  # noqa: BLE001 -- the others must hear of it as well
                about = "fastdedup: an error was raised when a client was told of a freed key"
                asyncio.get_running_loop().call_exception_handler({"message": about, "exception": fault})
