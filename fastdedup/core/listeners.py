"""Who hears of what a gate does: its log, the user's callbacks, and its counters."""

from __future__ import annotations

import asyncio

from ..events import Event, OnEvent, log_batch_failure, log_failure
from ..kernel.engine import OnBatch, OnStoreCall
from .counters import GateCounters
from .incidents import Incidents
from .observers import Watchers


class Listeners:
    """Those of one gate, whichever connection it has.

    Args:
        name: the gate's name in the log: its namespace.
        on_event: the user's own callback.
    """

    def __init__(self, name: str, on_event: OnEvent | None = None) -> None:
        self.name = name
        self.incidents: Incidents | None = Incidents(name)
        """Writes the log lines; None where whoever made the gate logs its events, as the sidecar does."""
        self.on_event: list[OnEvent] = [] if on_event is None else [on_event]
        """Called with each event, before what counts: the user's callback."""
        self.on_batch: list[OnBatch] = []
        """Called with the size of each batch: the user's callback. Set before opening."""
        self.watchers = Watchers()
        """Who counts and who traces."""
        self.may_count_later = False
        """True where the gate may be counted while it is open, as in a test."""

    def another(self) -> Listeners:
        """Return the same listeners with a log of its own, for a gate that is open in several event loops."""
        other = Listeners(self.name)
        other.on_event, other.on_batch, other.watchers = self.on_event, self.on_batch, self.watchers
        other.may_count_later = True
        return other

    @classmethod
    def none(cls, name: str) -> Listeners:
        """Return what nobody hears."""
        nobody = cls(name)
        nobody.incidents = None
        return nobody

    def tell(self, kind: str, text: str, *args: object) -> None:
        """Log a line about a single key, where this gate logs by itself: five a minute of a kind, then a count."""
        if self.incidents is not None:
            self.incidents.tell(kind, text, *args)

    def may_tell(self, kind: str, lines: int) -> bool:
        """True where a line of this kind may be logged now; the others are counted."""
        return self.incidents is None or self.incidents.may_tell(kind, lines)

    def report(self, event: Event) -> None:
        """Log an event, and hand it to the user's callback. An error of that is logged, and changes no answer."""
        if self.incidents is not None:
            self.incidents(event)
        counters = self.watchers.counters
        for listener in self.on_event if counters is None else [*self.on_event, counters.on_event]:
            try:
                listener(event)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 -- no callback may stop a claim
                if self.may_tell(f"failed on_event: {type(event).__name__}", 1):
                    log_failure(event, error)

    # For an engine

    @property
    def batch_hearer(self) -> OnBatch | None:
        """What an engine calls with the size of each batch; None where nobody wants to know."""
        return self._batch_began if self.on_batch or self._counts else None

    @property
    def call_hearer(self) -> OnStoreCall | None:
        """What an engine calls with the verb and the seconds of each batch; None where nobody wants to know."""
        return self._store_called if self._counts else None

    @property
    def _counts(self) -> bool:
        return self.may_count_later or self._counters is not None

    @property
    def _counters(self) -> GateCounters | None:
        return self.watchers.counters or self.watchers.waits

    def _batch_began(self, size: int) -> None:
        if (counters := self._counters) is not None:
            counters.on_batch(size)
        for callback in self.on_batch:
            try:
                callback(size)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 -- the batch must still be sent
                if self.may_tell("failed on_batch", 1):
                    log_batch_failure(error)

    def _store_called(self, verb: str, took: float) -> None:
        if (counters := self._counters) is not None:
            counters.on_store_call(verb, took)
