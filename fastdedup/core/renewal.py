"""Keeps claims' leases alive while their owners work, and notices when that fails."""

from __future__ import annotations

import asyncio
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from ..errors import DedupError, UnavailableError

_AT_ONCE: Final = 256
"""Renewals that start in one turn of the event loop."""
_LEASES: Final = 64
"""Different leases whose renewals are kept, before those without any are dropped."""


class Renewable(Protocol):
    """The life of a claim, as far as its renewal concerns it."""

    @property
    def is_over(self) -> bool:
        """True if it is settled, or about to be."""

    async def renew(self) -> None:
        """Start the lease anew."""

    def lose(self, *, outage: bool) -> None:
        """Take note that the lease could not be renewed; `outage`: the store did not answer until it ended."""


class Waiting(Protocol):
    """A renewal that waits for the first third of its lease to be over."""

    began: float

    def start(self) -> None:
        """The first third is over."""


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


class Renewals:
    """The renewals of one connection: a queue for each lease. `len` tells how many queues are kept."""

    def __init__(self) -> None:
        # Mutable: the queues by their lease in seconds; when those without any renewal are dropped.
        self._queues: dict[float, RenewalQueue] = {}
        self._tidy_at = _LEASES
        self.on_asked: Callable[[], None] | None = None
        """Called when a queue is asked for: a claim is about to be renewed. For tests."""

    def __len__(self) -> int:
        return len(self._queues)

    def of(self, lease: float) -> RenewalQueue:
        """Return the queue of that lease, in seconds."""
        if self.on_asked is not None:
            self.on_asked()
        queue = self._queues.get(lease)
        if queue is None:
            if len(self._queues) >= self._tidy_at:
                # Most programs have one lease or two; some make one up for each claim.
                self._queues = {each: queue for each, queue in self._queues.items() if queue.waits}
                self._tidy_at = max(_LEASES, 2 * len(self._queues))
            queue = self._queues[lease] = RenewalQueue(asyncio.get_running_loop(), lease)
        return queue

    def waiting(self) -> list[Waiting]:
        """Return the renewals that wait for the first third of their lease to be over."""
        return [renewal for queue in self._queues.values() for renewal in queue.waiting()]

    def close(self) -> None:
        """Start none any more."""
        for queue in self._queues.values():
            queue.close()


async def keep_renewed(
    held: Callable[[], Renewable | None], loop: asyncio.AbstractEventLoop, began: float, lease: float
) -> None:
    """Renew at each third of the lease. The claim is lost when the store says so, or when the lease passed.

    An error that is not fastdedup's comes from the user's policy in an outage: it is no answer either.
    If nothing was asked before the lease passed, this process stood still, and that is no outage: another owner
    may have the key.
    """
    pause, unanswered = 0.0, False
    ends = began + lease
    while True:
        await asyncio.sleep(min(pause, max(ends - loop.time(), 0.0)))
        started = loop.time()
        life = held()
        if life is None:
            return None
        if started >= ends:  # a renewal that is sent now would hold the key, and no caller would use it
            return None if life.is_over else life.lose(outage=unanswered)
        try:
            async with asyncio.timeout_at(ends):
                await life.renew()
            pause, unanswered, ends = lease / 3, False, started + lease
        except Exception as error:  # noqa: BLE001 -- a policy of the user's may raise any
            if isinstance(error, DedupError) and not isinstance(error, UnavailableError):
                # Lost, or the store holds something else by now.
                return None if life.is_over else life.lose(outage=False)
            unanswered = True
            if loop.time() >= ends:
                return None if life.is_over else life.lose(outage=True)
            pause = lease / 10
        del life  # only weakly held while asleep
