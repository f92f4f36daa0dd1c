"""The part that all connections of a gate share: it lasts while event loops come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Literal
from weakref import WeakSet

from ..checks import Seconds, check_count, check_seconds, named, shown
from ..decorated import DecoratedFunctions
from ..errors import ConfigError
from ..events import Event, OnEvent
from ..failures import log_batch_failure, log_failure
from ..fallback.base import OneLoopPolicy
from ..kernel.queue import MIN_BATCH, BatchObserver
from .counters import MAX_NAMESPACES, GateCounters
from .incidents import AT_ONCE, Incidents
from .observers import Observers
from .recent import RecentSuccesses
from .settings import Settings

OnBatch = Callable[[int], None]


class Common:
    """The settings of a gate's connections, the observers of their work, and the known namespaces.

    Args:
        settings: the gate's own: its namespace is its name in the log. Most scopes share its policy, whose journal
            has that name in figures.
        the others are those of `Dedup`.

    Raises:
        ConfigError: a setting is not valid; the message names it.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        timeout: Seconds,
        max_pending: int,
        replicas: int,
        on_shortfall: Literal["report", "raise"],
        known_duplicates: Seconds,
        on_event: OnEvent | None,
    ) -> None:
        self.name = settings.namespace
        self.timeout = check_seconds(timeout, "timeout")
        self.max_pending = check_count(max_pending, "max_pending")
        self.lease = settings.lease
        self.policy = settings.on_unavailable
        self.replicas = check_count(replicas, "replicas", least=0)
        if on_shortfall not in ("report", "raise"):
            raise ConfigError(f"on_shortfall must be 'report' or 'raise', got {shown(on_shortfall)}")
        self.raises_shortfall = on_shortfall == "raise"
        self.min_batch = MIN_BATCH
        """Claims in a batch, below which they are not spread over further batches. Set before opening."""
        self.max_result = 0
        """Bytes of the largest result of all scopes: a key with a larger record is refused alone."""
        self.recent = RecentSuccesses(
            0.0
            if known_duplicates is False
            else check_seconds(known_duplicates, "known_duplicates", least=0.0)
        )
        self.decorated = DecoratedFunctions()
        self.incidents: Incidents | None = Incidents(self.name)
        """Writes the log lines; None if the maker of the gate, such as the sidecar, logs its events itself."""
        if on_event is not None and not callable(on_event):
            raise ConfigError(f"on_event must be callable with one event, got {named(on_event)}")
        self.on_event: list[OnEvent] = [] if on_event is None else [on_event]
        """The user's callback, called with each event before the counters."""
        self.on_batch: OnBatch | None = None
        """The user's callback, called with the size of each batch. Set before opening."""
        self.observers = Observers()
        """The observers that count and trace."""
        self.may_count_later = False
        """True if counting may begin while the gate is open; a test sets it."""
        self.one_loop_policies: WeakSet[OneLoopPolicy] = WeakSet()
        """The policies of the gate and its scopes that one event loop may use at a time."""
        # Mutable: the first namespaces with a ledger.
        self._with_ledgers: set[str] = set()

    # Observers of what happens

    def unheard(self) -> Common:
        """Return the same settings, without a log, callbacks and counters."""
        other = copy(self)
        other.incidents, other.on_event, other.on_batch, other.observers = None, [], None, Observers()
        return other

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Log, count and trace separately until the `with` ends: a test's events are not the application's."""
        observers = self.observers
        log, age, late = self.incidents, self.recent.age, self.may_count_later
        watched = observers.counters, observers.tracing, observers.context, observers.span_key
        self.incidents = Incidents(self.name)
        self.recent.forget_all()
        if observers.counters is not None:
            self.count_anew()
        try:
            yield
        finally:
            is_counted = observers.counters is not None
            self.incidents, self.recent.age, self.may_count_later = log, age, late
            observers.counters, observers.tracing, observers.context, observers.span_key = watched
            if is_counted and observers.counters is None:
                self.count_anew()  # an observer of the test may ask for figures again

    def tell(self, kind: str, text: str, *args: object) -> None:
        """Log a line about a single key, if this gate logs by itself: five a minute of a kind, then a count."""
        if self.incidents is not None:
            self.incidents.tell(kind, text, *args)

    def may_tell(self, kind: str, lines: int = AT_ONCE) -> bool:
        """True if a line of this kind may be logged now; the others are counted."""
        return self.incidents is None or self.incidents.may_tell(kind, lines)

    def report(self, event: Event) -> None:
        """Log an event, and pass it to the user's callback. An error of the callback is logged only."""
        if self.incidents is not None:
            self.incidents(event)
        facts = self.observers.facts
        for listener in self.on_event if facts is None else [*self.on_event, facts.on_event]:
            try:
                listener(event)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 -- no callback may stop a claim
                if self.may_tell(f"failed on_event: {type(event).__name__}", 1):
                    log_failure(event, error)

    @property
    def batch_observer(self) -> BatchObserver | None:
        """The observer of an engine's batches: this object, if batches are counted or the user has a callback."""
        wanted = self.may_count_later or self.on_batch is not None or self.observers.facts is not None
        return self if wanted else None

    def batch_ended(self, verb: str, size: int, seconds: float) -> None:
        """Count a batch, and call the user's callback for it; see `BatchObserver`."""
        if (facts := self.observers.facts) is not None:
            facts.batch_ended(verb, size, seconds)
        if self.on_batch is not None:
            try:
                self.on_batch(size)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 -- callers wait for their answers
                if self.may_tell("failed on_batch", 1):
                    log_batch_failure(error)

    # Figures

    def count_anew(self) -> GateCounters:
        """Return new counters, which count from now on. Measured times go to the same receiver as before."""
        former, counters = self.observers.counters, GateCounters()
        if former is not None:
            counters.durations = former.durations
        for namespace in self.recent.namespaces():
            counters.expect(namespace)
        for namespace in self._with_ledgers:
            counters.expect(namespace, "first")
        self.observers.counters = counters
        return counters

    def expect(self, namespace: str, *verbs: str) -> None:
        """Note for the figures that a namespace may be used; with the verb "first", that it has a ledger.

        `recent` knows the namespace itself, as long as it lives.
        """
        if verbs and len(self._with_ledgers) < MAX_NAMESPACES:
            self._with_ledgers.add(namespace)
        if self.observers.counters is not None:
            self.observers.counters.expect(namespace, *verbs)
