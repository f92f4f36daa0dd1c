"""Keeps claims' leases alive while their owners work, and notices when that fails."""

from __future__ import annotations

import asyncio
import weakref
from collections import OrderedDict
from typing import Final

from .renewing import Renewable, Waiting, keep_renewed

_AT_ONCE: Final = 256
"""Renewals that start in one turn of the event loop."""


class Renewal:
    """Renews at a third of the lease; lost when told so, or when the lease passed unrenewed.

    Holds the life of the claim weakly: a claim that the program forgot is not renewed for ever. If it is `owned`, it
    is held itself, until `stop`, which the claim's caller calls in any case.
    """

    __slots__ = ("_lease", "_life", "_loop", "_owned", "_queue", "began", "task")

    def __init__(
        self, life: Renewable, lease: float, queue: RenewalQueue, began: float, *, owned: bool = False
    ) -> None:
        self._owned: Renewable | None = life if owned else None
        self._life: weakref.ref[Renewable] | None = None if owned else weakref.ref(life)
        self._lease = lease
        self._loop = queue.loop
        self._queue = queue
        self.began = began
        """When the lease began, in the loop's time: when the claim was sent, not when its answer was read."""
        self.task: asyncio.Task[None] | None = None
        """What renews; None before the first third is over. Most claims are settled before, and never need one."""
        queue.add(self)

    def stop(self) -> None:
        """Renew no more."""
        self._owned = self._life = None  # a test that moves its clock asks for the claim
        self._queue.remove(self)
        if self.task is not None:
            self.task.cancel()

    def held(self) -> Renewable | None:
        """Return the claim's life, or None if it is not to be renewed any more."""
        return self._owned if self._life is None else self._life()

    def start(self) -> None:
        """The first third is over: renew from now on."""
        if self.held() is not None:
            work = keep_renewed(self.held, self._loop, self.began, self._lease)
            self.task = self._loop.create_task(work, name="fastdedup-renewal")


class RenewalQueue:
    """Renewals of one lease, in the order in which they start: one timer for all of them, not one for each."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lease: float) -> None:
        self.loop = loop
        self._third = lease / 3
        # Mutable: those that wait for their first third to be over: in order, and left at once. Not a plain dict,
        # whose first key is found behind all that were removed before it.
        self._waiting: OrderedDict[Waiting, None] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """True while any is to be started."""
        return bool(self._waiting)

    def waiting(self) -> list[Waiting]:
        """Return those that are to be started, in the order in which they start."""
        return list(self._waiting)

    def add(self, renewal: Waiting) -> None:
        """Start it a third of the lease after it began."""
        self._waiting[renewal] = None
        if self._timer is None:
            self._timer = self.loop.call_at(renewal.began + self._third, self._start_due)

    def remove(self, renewal: Waiting) -> None:
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
        for _ in range(_AT_ONCE):
            if not self._waiting:
                return
            renewal = next(iter(self._waiting))
            if renewal.began + self._third > now:
                self._timer = self.loop.call_at(renewal.began + self._third, self._start_due)
                return
            del self._waiting[renewal]
            renewal.start()
        self._timer = self.loop.call_at(now, self._start_due)  # others have their turn between
