"""The operations that wait to be sent, in a queue for each verb; and the batches that are under way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Final, Protocol, assert_never, cast

from ..errors import UnavailableError
from .answers import too_late
from .clock import NOTE_EVERY, ClockBound, named_claims
from .named import NamedClaims
from .operations import ClaimOp, Op, Reply
from .replies import RefusedAlone
from .store import BatchStore, DirectStore, TimedStore
from .verbs import Turn, Verb

_CLAIM: Final = Verb.CLAIM  # naming an enum's member through its class costs 50 ns on Python 3.11
MIN_BATCH: Final = 16
"""Operations in a batch, below which a further batch in flight costs more than it saves."""

_LARGE_BATCH: Final = 16
"""Claims in a batch of claims with large results: `claim.lua` brings 4 MiB in a call, of 256 KiB each by default."""

Served = tuple[deque[Op], Callable[[deque[Op], int], list[Op]]]
"""A queue, and the function that takes a batch from it; its argument is how many batches may start now."""


class OperationQueue:
    """A queue for each verb, first in, first out. A batch holds operations of one verb.

    Args:
        max_batch: the most operations in a batch.
        max_bytes: the most bytes of results in a batch.
        min_batch: claims in a batch, below which they are not spread over further batches.
        drop_unsent: called with each claim that was cancelled before it was sent; it may put another claim.
    """

    def __init__(
        self, *, max_batch: int, max_bytes: int, min_batch: int, drop_unsent: Callable[[ClaimOp], None]
    ) -> None:
        self._max_batch = max_batch
        self._min_batch = min_batch
        self._max_bytes = max_bytes
        self._drop_unsent = drop_unsent
        self._queues: dict[Verb, deque[Op]] = {verb: deque() for verb in Verb}
        # Claims with large results have their own turn: other claims need not wait until all of these have replies.
        self._large: deque[Op] = deque()
        self._urgent: list[Served] = []
        self._turns: deque[Served] = deque()
        for verb, queue in self._queues.items():
            self._serve(verb, queue)
        self._turns.append((self._large, self._take_large))
        self.claims = self._queues[_CLAIM]
        """The queue of claims: `Engine.claim` appends to it directly, which saves a call."""
        self.others = 0
        """The number of operations in the other queues."""

    def put(self, op: Op) -> None:
        """Append an operation to the queue of its verb."""
        if op.verb is not _CLAIM:
            self.others += 1
        self._queues[op.verb].append(op)

    def put_large(self, op: ClaimOp) -> None:
        """Put a claim again that was sent but not executed, because its batch had enough large results."""
        self.others += 1
        insert_by_age(self._large, op)

    def put_by_age(self, op: Op) -> None:
        """Put an operation that was accepted elsewhere."""
        self.others += op.verb is not _CLAIM
        insert_by_age(self._queues[op.verb], op)

    def next_batch(self, free: int) -> list[Op]:
        """Take the next batch; empty if no operation waits. `free`: the number of batches that may start now."""
        for queue, take in self._urgent:
            if queue and (batch := take(queue, free)):
                return batch
        turns = self._turns
        for _ in range(len(turns)):
            queue, take = turns[0]
            turns.rotate(-1)
            if queue and (batch := take(queue, free)):
                return batch
        return []

    def excuse(self, seconds: float) -> None:
        """Let all operations count as accepted `seconds` later, because the loop was blocked for that time."""
        for queue in (*self._queues.values(), self._large):
            for op in queue:
                op.at += seconds

    def oldest(self) -> float | None:
        """Return the acceptance time of the longest waiting operation; None if only large claims wait."""
        return min((queue[0].at for queue in self._queues.values() if queue), default=None)

    def oldest_large(self) -> float | None:
        """Return the same as `oldest`, for the claims with large results."""
        return self._large[0].at if self._large else None

    def overdue(self, before: float, large_before: float) -> Iterator[tuple[Op, type[UnavailableError]]]:
        """Take out, one by one, the operations that were accepted at `before` or earlier.

        Each comes with the kind of its error. Claims with large results have a time of their own: one that is sent
        late makes its batch late. The store has answered them, so no policy may: that error is RefusedAlone.
        """
        for queue in self._queues.values():
            while queue and queue[0].at <= before:
                self.others -= queue is not self.claims
                yield queue.popleft(), UnavailableError
        while self._large and self._large[0].at <= large_before:
            self.others -= 1
            yield self._large.popleft(), RefusedAlone

    def _serve(self, verb: Verb, queue: deque[Op]) -> None:
        """Let a verb's queue be served, in the way of the verb's row."""
        turn = verb.row.turn
        match turn:
            case Turn.URGENT:
                self._urgent.append((queue, self._take_all))
            case Turn.IN_TURN:
                self._turns.append((queue, self._take_all))
            case Turn.SPREAD:
                self._turns.append((queue, self._take_share))
            case Turn.CLAIMS:
                self._turns.append((queue, self._take_claims))
            case _:
                assert_never(turn)

    def _take_all(self, queue: deque[Op], free: int) -> list[Op]:
        return self._take(queue, self._max_batch)

    def _take_share(self, queue: deque[Op], free: int) -> list[Op]:
        return self._take(queue, self._share(len(queue), free))

    def _take_large(self, queue: deque[Op], free: int) -> list[Op]:
        """Take claims; one that was cancelled before it was sent is dropped."""
        batch: list[Op] = []
        while queue and len(batch) < _LARGE_BATCH:
            op = queue.popleft()
            self.others -= 1
            if op.future.done():
                self._drop_unsent(cast(ClaimOp, op))
            else:
                batch.append(op)
        return batch

    def _take_claims(self, queue: deque[Op], free: int) -> list[Op]:
        return self.take_claims(free)

    def _take(self, queue: deque[Op], most: int) -> list[Op]:
        batch: list[Op] = []
        weight = 0
        while queue and len(batch) < most and weight < self._max_bytes:
            op = queue.popleft()
            weight += op.weight
            batch.append(op)
        self.others -= len(batch)
        return batch

    def _share(self, waiting: int, free: int) -> int:
        """Return how many operations the next batch takes, so that all free batches get some."""
        return min(self._max_batch, max(self._min_batch, -(-waiting // free)))

    def take_claims(self, free: int) -> list[Op]:
        """Take the next batch of claims; `free`: see `next_batch`.

        The claims are spread over the free batches, so that the store works on one batch while the loop reads the
        answers of another. A claim that was cancelled before it was sent is dropped.
        """
        queue = self.claims
        while True:
            size = len(queue)
            if size > self._min_batch:
                size = self._share(size, free)
            taken = [queue.popleft() for _ in range(size)]
            batch = [op for op in taken if not op.future.done()]
            if len(batch) != size:
                for op in taken:
                    if op.future.done():
                        self._drop_unsent(cast(ClaimOp, op))
                if not batch and queue:
                    continue
            return batch


def insert_by_age(queue: deque[Op], op: Op) -> None:
    """Put an operation that was accepted earlier into a queue: before all others if it is the oldest, else last."""
    if queue and queue[0].at <= op.at:
        queue.append(op)
    else:
        queue.appendleft(op)


Ended = Sequence[Reply] | BaseException


class BatchObserver(Protocol):
    """Counts and times the batches of an engine, which counts nothing itself."""

    def batch_ended(self, verb: str, size: int, seconds: float) -> None:
        """Called when a batch has its replies, or an error in their place, before its callers. It must not raise.

        Args:
            verb: the verb of its operations.
            size: the number of its operations.
            seconds: the time for which it was under way.
        """
        ...


@dataclass(eq=False)
class Batch:
    """Operations of one verb that are sent together."""

    ops: list[Op]
    verb: Verb
    deadline: float
    """The oldest operation's, in the loop's time."""
    expired: bool = False
    named: Sequence[ClaimOp] = ()
    """Its claims of caller-chosen owners, if the server's clock is compared with their fences."""
    sent_at: float = 0.0
    """The time of sending by time.monotonic(); 0 if the server's clock is not compared."""
    began: float = 0.0
    """The time of sending by time.perf_counter(); 0 without an observer."""
    task: asyncio.Task[Sequence[Reply]] | None = None
    """The task that sends the batch, if `DirectStore.begin` did not send it."""


class Batches:
    """The batches of one engine that are under way.

    Args:
        timeout: seconds, for the error of a batch that ran out of time.
        observer: called for each batch that has ended.
        on_end: called with each batch, and with its replies or the error in their place.
    """

    def __init__(
        self,
        store: BatchStore,
        loop: asyncio.AbstractEventLoop,
        timeout: float,
        observer: BatchObserver | None,
        on_end: Callable[[Batch, Ended], None],
    ) -> None:
        self._store = store
        self._direct = store if isinstance(store, DirectStore) else None
        self._clock = ClockBound(store) if isinstance(store, TimedStore) else None
        self._loop = loop
        self._timeout = timeout
        self._observer = observer
        self._on_end = on_end
        # Mutable: when a batch next measures the server's clock, in the loop's time.
        self._note_from = 0.0
        self.under_way: set[Batch] = set()

    def start(self, ops: list[Op], deadline: float, now: float, named: NamedClaims) -> None:
        """Send operations of one verb.

        Args:
            ops: the operations, at least one.
            deadline: when they must be answered, in the loop's time.
            now: the loop's time.
            named: the open claims of caller-chosen owners.
        """
        batch = Batch(ops, ops[0].verb, deadline)
        self.under_way.add(batch)
        if self._observer is not None:
            batch.began = perf_counter()
        if self._clock is not None and (named.open or now >= self._note_from):
            self._note_from = now + NOTE_EVERY
            if named.open:
                batch.named = named_claims(ops)
            batch.sent_at = self._clock.sent(batch.named)
        try:
            begun = self._direct is not None and self._direct.begin(
                batch.verb, ops, partial(self._end, batch)
            )
        except Exception:  # noqa: BLE001 -- the task gets the same error and gives it to the callers
            begun = False
        if not begun:
            self._run_as_task(batch)

    def give_up(self, before: float) -> None:
        """End the batches whose deadline has come: the store or the batch's task ends each of them."""
        overdue = [batch for batch in self.under_way if batch.deadline <= before]
        # They are marked first: `abandon` ends every batch under way, and those with time left are sent again.
        for batch in overdue:
            batch.expired = True
        if self._direct is not None and any(batch.task is None for batch in overdue):
            self._direct.abandon()
        for batch in overdue:
            if batch.task is not None:
                batch.task.cancel()

    def _stopped(self, batch: Batch) -> None:
        """Handle a batch that the store has ended without an answer."""
        if batch.expired:
            self._end(batch, too_late(self._timeout))
        else:
            # Sends the same operations again by `execute`. This is safe, because each names its owner.
            self._run_as_task(batch)

    def _run_as_task(self, batch: Batch) -> None:
        batch.task = self._loop.create_task(self._execute(batch))
        # Not with try and except inside it: a task that is cancelled before its first step runs no code.
        batch.task.add_done_callback(partial(self._ran, batch))

    async def _execute(self, batch: Batch) -> Sequence[Reply]:
        return await self._store.execute(batch.verb, batch.ops)

    def _ran(self, batch: Batch, task: asyncio.Task[Sequence[Reply]]) -> None:
        if task.cancelled():
            self._end(batch, too_late(self._timeout))
        else:
            self._end(batch, task.exception() or task.result())

    def _end(self, batch: Batch, outcome: Ended | None) -> None:
        """Take the replies of a batch, the error in their place, or None: `DirectStore.begin` has stopped it."""
        if outcome is None:
            self._stopped(batch)
            return
        self.under_way.discard(batch)
        if self._observer is not None:
            self._observer.batch_ended(batch.verb.value, len(batch.ops), perf_counter() - batch.began)
        if batch.sent_at and self._clock is not None and not isinstance(outcome, BaseException):
            self._clock.answered(batch.named, batch.sent_at)
        self._on_end(batch, outcome)
