"""Keeps claims' leases alive while their owners work, and notices when that fails."""

from __future__ import annotations

import asyncio
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from ..errors import ShortfallError, is_answer

_AT_ONCE: Final = 256
"""Renewals that start in one turn of the event loop."""
_LEASES: Final = 64
"""The number of different leases whose queues are kept, before empty queues are dropped."""


class Renewable(Protocol):
    """The part of a claim's life that its renewal uses."""

    under_way: bool
    """True while a request to settle it is under way, which may get no answer."""

    @property
    def is_over(self) -> bool:
        """True if it is settled, or about to be; also if another object of the same owner has completed it."""

    @property
    def renewed_until(self) -> float:
        """The end of its lease in the loop's time, if it was renewed, also by hand; else 0.0."""

    async def renew(self) -> None:
        """Start the lease anew."""

    def lose(self, *, outage: bool) -> None:
        """Note that the lease could not be renewed; `outage`: the store did not answer until it ended."""


class Waiting(Protocol):
    """A renewal that waits for the first third of its lease to be over."""

    began: float

    def start(self) -> None:
        """Called when the first third is over."""


class Renewal:
    """Renews at a third of the lease. The claim is lost if the store says so, or if the lease passed unrenewed.

    It ends with its `holder`, of which it has only a weak reference: a claim that the program forgot is not renewed
    for ever. The holder may be the life of the claim. Without one it goes on until `stop`, which the claim's caller
    calls in any case.
    """

    __slots__ = ("_holder", "_lease", "_life", "_loop", "_queue", "began", "task")

    def __init__(
        self,
        life: Renewable,
        lease: float,
        queue: RenewalQueue,
        began: float,
        holder: weakref.ref[Any] | None = None,
    ) -> None:
        self._holder = holder
        self._life = None if holder is not None and holder() is life else life
        self._lease = lease
        self._loop = queue.loop
        self._queue = queue
        self.began = began
        """When the lease began, in the loop's time: when the claim was sent, not when its answer was read."""
        self.task: asyncio.Task[None] | None = None
        """The task that renews; None before the first third is over. Most claims are settled before that."""
        queue.add(self)

    def stop(self) -> None:
        """Stop renewing."""
        self._holder = self._life = None  # a test that moves its clock looks at the claim
        self._queue.remove(self)
        if self.task is not None:
            self.task.cancel()

    def begin_anew(self, began: float) -> None:
        """Count the lease from `began`, because its owner has renewed it by hand for another time."""
        self._queue.remove(self)
        if self.task is not None:
            self.task.cancel()
        self.began = began
        self._queue.add(self)

    def held(self) -> Renewable | None:
        """Return the claim's life, or None if it must not be renewed any more."""
        if self._holder is None:
            return self._life
        holder = self._holder()
        return holder if holder is None or self._life is None else self._life

    def start(self) -> None:
        """Renew from now on, because the first third is over."""
        if self.held() is not None:
            work = keep_renewed(self.held, self._loop, self.began, self._lease)
            self.task = self._loop.create_task(work, name="fastdedup-renewal")


class RenewalQueue:
    """Renewals of one lease, in the order in which they start: one timer for all of them, not one for each."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lease: float) -> None:
        self.loop = loop
        self._third = lease / 3
        # Mutable: when the last lease in the queue began.
        self._latest = 0.0
        # Mutable: the renewals that wait for the end of their first third: in order, and quick to remove. Not a plain
        # dict, which looks for its first key behind all keys that were removed before it.
        self._waiting: OrderedDict[Waiting, None] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """True while a renewal waits for its start."""
        return bool(self._waiting)

    def waiting(self) -> list[Waiting]:
        """Return the renewals that wait for their start, in the order of their starts."""
        return list(self._waiting)

    def add(self, renewal: Waiting) -> None:
        """Start a renewal when a third of its lease is over.

        A lease that began long before the others, such as that of a claim whose block began late, does not wait
        behind them.
        """
        if renewal.began >= self._latest:
            self._latest = renewal.began
        elif renewal.began < self._latest - self._third / 2:
            renewal.start()
            return
        self._waiting[renewal] = None
        if self._timer is None:
            self._timer = self.loop.call_at(renewal.began + self._third, self._start_due)

    def remove(self, renewal: Waiting) -> None:
        """Remove a renewal that is no longer needed."""
        self._waiting.pop(renewal, None)

    def close(self) -> None:
        """Start no more renewals."""
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
        self._timer = self.loop.call_at(now, self._start_due)  # other callbacks run in between


class Renewals:
    """The renewals of one connection: a queue for each lease. `len` is the number of queues."""

    def __init__(self) -> None:
        # Mutable: the queues by their lease in seconds; the number of queues at which empty ones are dropped.
        self._queues: dict[float, RenewalQueue] = {}
        self._tidy_at = _LEASES
        self.on_asked: Callable[[], None] | None = None
        """For tests: called when a queue is requested, because a claim is about to be renewed."""

    def __len__(self) -> int:
        return len(self._queues)

    def of(self, lease: float) -> RenewalQueue:
        """Return the queue of that lease, in seconds."""
        if self.on_asked is not None:
            self.on_asked()
        queue = self._queues.get(lease)
        if queue is None:
            if len(self._queues) >= self._tidy_at:
                # Most programs have one lease or two; some have a new one for each claim.
                self._queues = {each: queue for each, queue in self._queues.items() if queue.waits}
                self._tidy_at = max(_LEASES, 2 * len(self._queues))
            queue = self._queues[lease] = RenewalQueue(asyncio.get_running_loop(), lease)
        return queue

    def waiting(self) -> list[Waiting]:
        """Return the renewals that wait for the end of the first third of their lease."""
        return [renewal for queue in self._queues.values() for renewal in queue.waiting()]

    def close(self) -> None:
        """Start no more renewals."""
        for queue in self._queues.values():
            queue.close()


async def keep_renewed(
    held: Callable[[], Renewable | None], loop: asyncio.AbstractEventLoop, began: float, lease: float
) -> None:
    """Renew at each third of the lease. The claim is lost when the store says so, or when the lease passed.

    An error that is not fastdedup's comes from the user's policy in an outage: it is not an answer either. If nothing
    was sent before the lease passed, this process stood still, and that is not an outage: another owner may have the
    key. A lease that the caller has renewed for longer is left alone until it has only a renewal's time left; at each
    third it is looked at, because the caller may have renewed it for less again.
    """
    pause, unanswered = began + lease / 3 - loop.time(), False
    ends = began + lease
    while True:
        await asyncio.sleep(max(min(pause, ends - loop.time()), 0.0))
        started = loop.time()
        life = held()
        if life is None:
            return None
        known = life.renewed_until
        ends = known if max(known, ends) - started > lease else max(known, ends)
        if ends - started > lease:
            pause = min(ends - started - lease / 3 * 2, lease / 3)
            del life
            continue
        if started >= ends:  # a renewal that is sent now would hold a key that no caller uses
            return None if life.is_over else life.lose(outage=unanswered)
        try:
            async with asyncio.timeout_at(ends):
                with suppress(ShortfallError):  # it was done
                    await life.renew()
            pause, unanswered, ends = lease / 3, False, started + lease
        except Exception as error:  # noqa: BLE001 -- the user's policy may raise any error
            # While a settling is under way, this task goes on: the settling may get no answer. If it gets one,
            # it stops this task.
            if is_answer(error) and not life.under_way:
                # Lost, or the store has another record now.
                return None if life.is_over else life.lose(outage=False)
            unanswered = True
            if loop.time() >= ends:
                return None if life.is_over else life.lose(outage=True)
            pause = lease / 10
        del life  # only a weak reference during the sleep
