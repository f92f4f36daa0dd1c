"""Holding a message unacknowledged while a store does not answer: the consumer pauses, and loses nothing."""

from __future__ import annotations

import asyncio
from time import monotonic
from types import TracebackType

from ..errors import describe_error
from ..events import ConsumerPaused, ConsumerResumed, OnEvent, emit
from .decisions import Counts, log
from .rules import pause_of_hold


class Pauses:
    """The messages of one consumer that wait for a store. While a message waits, the consumer is paused."""

    def __init__(self, consumer: str, counts: Counts, on_event: OnEvent | None) -> None:
        self.counts = counts
        self._consumer = consumer
        self.on_event = on_event
        # Mutable: how many messages wait, and since when at least one does.
        self._waiting = 0
        self._since = 0.0

    @property
    def is_paused(self) -> bool:
        """True while a message waits for a store that does not answer."""
        return self._waiting > 0

    def add(self, reason: str) -> None:
        """Count a message that begins to wait."""
        self._waiting += 1
        if self._waiting == 1:
            self._since = monotonic()
            log.warning("consumer %r is paused: %s", self._consumer, reason)
            emit(self.on_event, ConsumerPaused(self._consumer, reason))

    def remove(self) -> None:
        """Stop counting a message, because it no longer waits."""
        self._waiting -= 1
        if self._waiting == 0:
            lasted = monotonic() - self._since
            log.warning("consumer %r resumes after %.1f s", self._consumer, lasted)
            emit(self.on_event, ConsumerResumed(self._consumer, lasted))


class HeldMessage:
    """A context manager for one message that may wait: the wait ends on every way out of the block."""

    __slots__ = ("_counted", "_pauses", "_waits")

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        # Mutable: whether it waits for a store, and whether it is counted as held.
        self._waits = False
        self._counted = False

    def __enter__(self) -> HeldMessage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def count(self) -> None:
        """Count the message as held, once."""
        if not self._counted:
            self._counted = True
            self._pauses.counts.held += 1

    async def pause(self, error: BaseException) -> None:
        """Wait a moment for a store that does not answer."""
        self.count()
        self.begin(describe_error(error))
        await asyncio.sleep(pause_of_hold())

    def begin(self, reason: str) -> None:
        """Begin the wait, unless it has begun."""
        if not self._waits:
            self._waits = True
            self._pauses.add(reason)

    def end(self) -> None:
        """End the wait, if it has begun."""
        if self._waits:
            self._waits = False
            self._pauses.remove()
