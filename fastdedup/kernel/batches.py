"""Sends batches to a store, and ends each with its replies or with the error in their place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Protocol

from .answers import too_late
from .clock import NOTE_EVERY, ClockBound, named_claims
from .named import NamedClaims
from .operations import ClaimOp, Op
from .replies import Reply
from .store import BatchStore, DirectStore, TimedStore

Ended = Sequence[Reply] | BaseException


class BatchObserver(Protocol):
    """Makes figures of the batches of an engine, which counts nothing itself."""

    def batch_ended(self, verb: str, size: int, seconds: float) -> None:
        """A batch has its replies, or the error in their place; its callers do not know them yet. Must not raise.

        Args:
            verb: of its operations.
            size: how many operations it had.
            seconds: how long it was under way.
        """
        ...


class Batch:
    """Operations of one verb that are sent together. `deadline` is the oldest operation's, in the loop's time."""

    __slots__ = ("began", "deadline", "expired", "named", "ops", "sent_at", "task", "verb")

    def __init__(self, ops: list[Op], deadline: float) -> None:
        self.ops = ops
        self.verb = ops[0].verb
        self.deadline = deadline
        self.expired = False
        self.named: Sequence[ClaimOp] = ()
        """The claims of caller-chosen owners in it, if the server's clock is compared with their fences."""
        self.sent_at = 0.0
        """By time.monotonic(); 0 if the server's clock is not compared."""
        self.began = 0.0
        """By time.perf_counter(); 0 without an observer."""
        self.task: asyncio.Task[Sequence[Reply]] | None = None
        """Sends it, if it was not sent by `DirectStore.begin`."""


class Batches:
    """The batches of one engine that are under way.

    Args:
        timeout: seconds, for the error of a batch that ran out of time.
        observer: hears of each batch that has ended.
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
        # Mutable: when a batch next tells about the server's clock, in the loop's time.
        self._note_from = 0.0
        self.under_way: set[Batch] = set()

    def start(self, ops: list[Op], deadline: float, now: float, named: NamedClaims) -> None:
        """Send operations of one verb.

        Args:
            ops: the operations, one at least.
            deadline: when they must be answered, in the loop's time.
            now: the loop's time.
            named: the open claims of caller-chosen owners.
        """
        batch = Batch(ops, deadline)
        self.under_way.add(batch)
        if self._observer is not None:
            batch.began = perf_counter()
        if self._clock is not None and (named.counts or now >= self._note_from):
            self._note_from = now + NOTE_EVERY
            if named.counts:
                batch.named = named_claims(ops)
            batch.sent_at = self._clock.sent(batch.named)
        try:
            begun = self._direct is not None and self._direct.begin(
                batch.verb, ops, partial(self._begun, batch)
            )
        except Exception:  # noqa: BLE001 -- the task gets the same error and gives it to the callers
            begun = False
        if not begun:
            self._run_as_task(batch)

    def give_up(self, before: float) -> None:
        """End the batches whose deadline has come: each gets its end from the store, or from its task."""
        overdue = [batch for batch in self.under_way if batch.deadline <= before]
        # Marked first: `abandon` ends every batch under way, and the batches that have time left are sent again.
        for batch in overdue:
            batch.expired = True
        if self._direct is not None and any(batch.task is None for batch in overdue):
            self._direct.abandon()
        for batch in overdue:
            if batch.task is not None:
                batch.task.cancel()

    def _begun(self, batch: Batch, replies: Sequence[Reply] | None) -> None:
        if replies is not None:
            self._end(batch, replies)
        elif batch.expired:
            self._end(batch, too_late(self._timeout))
        else:
            # Sends the same operations again by `execute`. This is safe, because each names its owner.
            self._run_as_task(batch)

    def _run_as_task(self, batch: Batch) -> None:
        batch.task = self._loop.create_task(self._execute(batch))
        # Not by try and except inside: a task that is cancelled before its first step runs no code.
        batch.task.add_done_callback(partial(self._ran, batch))

    async def _execute(self, batch: Batch) -> Sequence[Reply]:
        return await self._store.execute(batch.verb, batch.ops)

    def _ran(self, batch: Batch, task: asyncio.Task[Sequence[Reply]]) -> None:
        if task.cancelled():
            self._end(batch, too_late(self._timeout))
        else:
            self._end(batch, task.exception() or task.result())

    def _end(self, batch: Batch, outcome: Ended) -> None:
        self.under_way.discard(batch)
        if self._observer is not None:
            self._observer.batch_ended(batch.verb.value, len(batch.ops), perf_counter() - batch.began)
        if batch.sent_at and self._clock is not None and not isinstance(outcome, BaseException):
            self._clock.answered(batch.named, batch.sent_at)
        self._on_end(batch, outcome)
