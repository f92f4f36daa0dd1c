"""Compares the clocks of a Cluster's servers: leases end by them, and a replica that is promoted brings its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from ....tasks import stop
from ..connection import RedisConnection
from ..former_clock import MAX_SKEW
from ..reconnect import lent
from ..scripts import pack
from ..url import Address, ServerURL

_EVERY = 60.0
"""Seconds between two readings of all clocks."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The time that a server's clock showed.

    Attributes:
        ahead: seconds by which it was ahead of this process's monotonic clock.
        error: seconds by which `ahead` may be wrong, because the answer took its time.
    """

    ahead: float
    error: float = 0.0


class ClockWatch:
    """Reads the clocks of all servers when a server is new, and once a minute; reports those that are off.

    Args:
        read: reads one server's clock; raises any error if the server gives no answer.
        report: called with the address of a server whose clock is off, and by how many seconds. Called again only
            after the clock was right in between.
        limit: returns the seconds by which a clock may differ.
    """

    def __init__(
        self,
        read: Callable[[Address], Coroutine[Any, Any, Reading]],
        report: Callable[[Address, float], None],
        limit: Callable[[], float] = lambda: MAX_SKEW,
    ) -> None:
        self._read = read
        self._report = report
        self._limit = limit
        # Mutable: the servers; those whose clocks were found to be off; the timer of the next reading.
        self._servers: frozenset[Address] = frozenset()
        self._off: set[Address] = set()
        self.reading: asyncio.Task[None] | None = None
        """The task that reads the clocks now; None between two readings."""
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, servers: Collection[Address]) -> None:
        """Watch these servers from now on. If one of them is new, all clocks are read at once."""
        new = not self._servers.issuperset(servers)
        self._servers = frozenset(servers)
        self._off &= self._servers
        if new and self.reading is None:
            self.begin()

    async def aclose(self) -> None:
        """Stop reading."""
        if self._timer is not None:
            self._timer.cancel()
        if self.reading is not None:
            await stop(self.reading)

    def begin(self) -> None:
        """Read the clocks now, not when the timer ends."""
        if self._timer is not None:
            self._timer.cancel()
        self.reading = asyncio.get_running_loop().create_task(self._read_all(), name="fastdedup-clocks")

    async def _read_all(self) -> None:
        """Read one clock after the other: nothing is urgent here."""
        readings: dict[Address, Reading | None] = {}
        while missing := self._servers - readings.keys():  # a layout may bring further servers meanwhile
            for address in sorted(missing):
                readings[address] = await self._reading_of(address)
        self._judge({address: found for address in self._servers if (found := readings[address])})
        self.reading = None
        self._timer = asyncio.get_running_loop().call_later(_EVERY, self.begin)

    async def _reading_of(self, address: Address) -> Reading | None:
        try:
            return await self._read(address)
        except Exception:  # noqa: BLE001 -- after any error the clock is read again later
            return None

    def _judge(self, readings: Mapping[Address, Reading]) -> None:
        for address, offset in offsets(readings, Reading(time.time() - time.monotonic())).items():
            if abs(offset.ahead) - offset.error <= self._limit():
                self._off.discard(address)
            elif address not in self._off:
                self._off.add(address)
                self._report(address, offset.ahead)


def offsets(readings: Mapping[Address, Reading], own: Reading) -> Mapping[Address, Reading]:
    """Return by how much each clock is ahead of the median. If their number is even, `own` counts as one more."""
    if len(readings) < 2:
        return {}
    clocks = sorted([*readings.values(), *([] if len(readings) % 2 else [own])], key=attrgetter("ahead"))
    middle = clocks[len(clocks) // 2]
    return {
        address: Reading(reading.ahead - middle.ahead, reading.error + middle.error)
        for address, reading in readings.items()
    }


async def read_clock(server: ServerURL, connection: RedisConnection | None, timeout: float) -> Reading:
    """Ask a server for its time: over its open connection, or else over a new connection.

    Raises:
        Exception: the server does not answer within `timeout` seconds, or refuses to tell its time.
    """
    async with asyncio.timeout(timeout), lent(server, timeout, connection) as link:
        sent = time.monotonic()
        seconds, microseconds = await link.send(pack("TIME"))
        took = time.monotonic() - sent
        return Reading(int(seconds) + int(microseconds) / 1e6 - sent - took / 2, took / 2)
