"""What the stores over Redis servers have in common: the servers' time, errors that name the server, reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import DedupError
from ...events import Event
from ..base import Page, Query
from .errors import translate
from .former_clock import MAX_SKEW
from .listener import Listener
from .scripts import CallHead
from .server import RedisServer


class ServedStore:
    """A store of Redis servers, or a part of one.

    Args:
        name: the name for events and errors, without a password.
        head: the numbers that every call sends; one object for all servers of a store.
    """

    def __init__(self, name: str, head: CallHead) -> None:
        self.name = name
        self.head = head

    @property
    def latest_us(self) -> int:
        """The latest time that any server of the store has reported: see `TimedStore`."""
        return self.head.latest_us

    @property
    def time_us(self) -> int:
        """The time by the servers' clocks: see `TimedStore`."""
        return self.head.time_us

    def fault_of(self, error: Any) -> Exception:
        """Return an error of this package that names the server, for an error of the driver or of Redis."""
        return error if isinstance(error, DedupError) else translate(error, self.name)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn what goes wrong into an error of this package: see `fault_of`."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- translated, or raised again
            raise self.fault_of(error) from None


class OneServer(ServedStore):
    """A store of one Redis server, or a Cluster's node: the server answers an operator."""

    server: RedisServer

    async def eviction_policy(self) -> str | None:
        """Return the server's maxmemory-policy: see `AdminStore`."""
        with self.translated():
            return await self.server.eviction_policy()

    async def page(self, query: Query, cursor: str, count: int) -> Page:
        """List some of the records that the server holds: see `AdminStore`."""
        with self.translated():
            return await self.server.page(query, cursor, count)


class WholeStore(ServedStore):
    """A whole store, not a part of one: it has a limit for records, one subscription, and events to report.

    Args:
        timeout: seconds within which the server must take the subscription.
        listener: the subscription to freed keys.
    """

    def __init__(self, name: str, head: CallHead, timeout: float, listener: Listener) -> None:
        super().__init__(name, head)
        self.listener = listener
        """The subscription to freed keys."""
        self.on_report: Callable[[Event], None] | None = None
        """Gets the events that the store notices by itself: see `ConfiguredStore`."""
        self.max_clock_skew = MAX_SKEW
        """Seconds by which the clocks of two of its servers may differ: see `ConfiguredStore`."""
        self._timeout = timeout

    @property
    def max_record(self) -> int:
        """Bytes of the largest record that the store reads. A gate that stores larger results raises this limit."""
        return self.head.max_record

    @max_record.setter
    def max_record(self, size: int) -> None:
        self.head.max_record = size

    async def listen(self, on_freed: Callable[[bytes | None], None]) -> None:
        """Subscribe once, over a separate connection."""
        with self.translated():
            async with asyncio.timeout(self._timeout):
                await self.listener.start(on_freed)

    def report(self, event: Event) -> None:
        """Report what the store, or a part of it, notices."""
        if self.on_report is not None:
            self.on_report(event)
