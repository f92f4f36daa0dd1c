"""Waiting for a key to be freed or settled: by news, not by polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from ..errors import UnavailableError
from ..stores.base import Store
from .common import Common
from .incidents import log

SHORT = 2.0
"""Seconds for which a lost subscription is not worth a line in the log: a failover takes as long."""


class Wakeups:
    """One future a key, shared by all who wait for it in this process.

    Args:
        common: the gate's, for its log; None if nothing is logged.
    """

    def __init__(self, common: Common | None = None) -> None:
        self._common = common
        self._freed: dict[bytes, asyncio.Future[None]] = {}
        self.waiting: dict[bytes, int] = {}
        """How many callers wait for each store key."""
        self.overheard_by: set[Callable[[bytes | None], None]] = set()
        """Told of each key as well: who waits in other processes, behind the sidecar."""
        # Mutable: why the store tells of no freed keys; since when, in the loop's time; whether a line said so.
        self._deaf = ""
        self._since = 0.0
        self._said = False

    async def listen(self, store: Store) -> bool:
        """Let the store tell of freed keys from now on. False: it tells of none at present."""
        try:
            await store.listen(self.freed)
        except UnavailableError as error:
            if not self._deaf:
                self._since = asyncio.get_running_loop().time()
            self._deaf = str(error)
            return False
        self._deaf, self._said = "", False
        return True

    def tell_deaf(self, pause: float) -> None:
        """Log, once for each loss, that waiters hear of no freed keys and look every `pause` seconds instead."""
        self._tell_deaf(
            SHORT,
            "gate %r: the store answers but tells of no freed keys, so waiters look every %g s: %s",
            pause,
        )

    def _tell_deaf(self, short: float, text: str, *values: object) -> None:
        if not self._deaf or self._said or asyncio.get_running_loop().time() - self._since < short:
            return
        self._said = True
        if self._common is not None and self._common.may_tell("waiters hear of no freed keys"):
            log.warning(text, self._common.name, *values, self._deaf)

    async def overhear(self, store: Store, on_freed: Callable[[bytes | None], None]) -> Callable[[], None]:
        """Call `on_freed` for all that wakes a waiter, as `Store.listen` does; return what ends that.

        Raises:
            UnavailableError: the store cannot be listened to just now. If that lasts, a line in the log says why.
        """
        if not await self.listen(store):
            # Before the clients have lines of their own, which refer to this one.
            self._tell_deaf(
                SHORT / 2,
                "gate %r: the store tells of no freed keys, so the clients' waiters look instead: %s",
            )
            raise UnavailableError("the store tells of no freed keys")
        self.overheard_by.add(on_freed)
        return partial(self.overheard_by.discard, on_freed)

    @contextmanager
    def watch(self, wire: bytes) -> Iterator[asyncio.Future[None]]:
        """Yield a future that is done when the key is next freed. Enter *before* asking how it stands."""
        future = self._freed.get(wire)
        if future is None or future.done():
            future = self._freed[wire] = asyncio.get_running_loop().create_future()
        self.waiting[wire] = self.waiting.get(wire, 0) + 1
        try:
            yield future
        finally:
            self.waiting[wire] -= 1
            if not self.waiting[wire]:
                del self.waiting[wire]
                self._freed.pop(wire, None)

    def close(self) -> None:
        """Wake no waiter any more: the event loop of those who wait is gone. They still leave `watch` one by one."""
        self._freed.clear()
        self.overheard_by.clear()
        self._deaf, self._said = "", False

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
