"""Keeps claims' leases alive while their owners work, and notices when that fails."""

from __future__ import annotations

import asyncio
import weakref
from typing import Protocol

from ..errors import DedupError, UnavailableError


class Renewable(Protocol):
    """A claim, as far as its renewal concerns it."""

    _settling: bool

    async def renew(self) -> None:
        """Start the lease anew."""

    def _lose(self, *, outage: bool) -> None:
        """Take note that the lease could not be renewed; `outage`: the store did not answer until it ended."""


class Renewal:
    """Renews at a third of the lease; lost when told so, or when the lease passed unrenewed.

    Holds the claim weakly: a claim that the program forgot about is not renewed for ever.
    """

    __slots__ = ("_claim", "_lease", "_loop", "_queue", "_task", "began")

    def __init__(self, claim: Renewable, lease: float, queue: RenewalQueue, began: float) -> None:
        self._claim = weakref.ref(claim)
        self._lease = lease
        self._loop = queue.loop
        self._queue = queue
        self.began = began
        """When the lease began, in the loop's time: when the claim was sent, not when its answer was read."""
        # Mutable: most claims are settled before the first third is over, and never need a task.
        self._task: asyncio.Task[None] | None = None
        queue.add(self)

    def stop(self) -> None:
        """Renew no more."""
        self._queue.remove(self)
        if self._task is not None:
            self._task.cancel()

    def start(self) -> None:
        """The first third is over: renew from now on."""
        if self._claim() is not None:
            self._task = self._loop.create_task(self._run(), name="fastdedup-renewal")

    async def _run(self) -> None:
        pause = 0.0
        ends = self.began + self._lease
        while True:
            await asyncio.sleep(min(pause, max(ends - self._loop.time(), 0.0)))
            started = self._loop.time()
            claim = self._claim()
            if claim is None:
                return None
            try:
                async with asyncio.timeout_at(ends):
                    await claim.renew()
            except (UnavailableError, TimeoutError):
                if self._loop.time() >= ends:
                    return claim._lose(outage=True)
                pause = self._lease / 10
            except DedupError:
                # Lost, or the store holds something else by now. Settled or being settled: no concern of ours.
                return None if claim._settling else claim._lose(outage=False)
            else:
                pause = self._lease / 3
                ends = started + self._lease
            del claim  # only weakly held while asleep


class RenewalQueue:
    """Renewals of one lease, in the order in which they start: one timer for all of them, not one for each."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lease: float) -> None:
        self.loop = loop
        self._third = lease / 3
        # Mutable: those that wait for their first third to be over (a dict: in order, and left at once).
        self._waiting: dict[Renewal, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """True while any is to be started."""
        return bool(self._waiting)

    def add(self, renewal: Renewal) -> None:
        """Start it a third of the lease after it began."""
        self._waiting[renewal] = None
        if self._timer is None:
            self._timer = self.loop.call_at(renewal.began + self._third, self._start_due)

    def remove(self, renewal: Renewal) -> None:
        """It is not needed any more."""
        self._waiting.pop(renewal, None)

    def close(self) -> None:
        """Start none any more."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _start_due(self) -> None:
        self._timer = None
        now = self.loop.time()
        while self._waiting:
            renewal = next(iter(self._waiting))
            if renewal.began + self._third > now:
                self._timer = self.loop.call_at(renewal.began + self._third, self._start_due)
                return
            del self._waiting[renewal]
            renewal.start()
