"""The metrics of a gate for OpenTelemetry; `integrations/opentelemetry.py` makes them.

To add a figure: count it in `GateCounters`, and name it in `GateObservations`. `watched.py` has those of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from ..gate.connection import Connection
from ..gate.counters import BOUNDS, GateCounters, by_one, verb_at_policy
from ..model import BreakerState
from ..stores.base import ShardedStore
from .watched import WatchedMessages

SCOPE: Final = "fastdedup"
_OF_REDIS: Final = "Redis at "
_COMMAND: Final = "EVALSHA"
"""The command of Redis that every operation of the gate is sent by, many of them at once."""
_BOUNDARIES: Final = sorted({*BOUNDS, 5.0})
"""The buckets of the histograms: those of OpenTelemetry's conventions for databases, and finer ones among them."""
_MOST_CALLS: Final = 1000
"""Attributes of batches that are kept: those of some 60 addresses that a Sentinel names."""
Attributes = dict[str, str | int]
Observe = Callable[[CallbackOptions], Iterable[Observation]]


class GateObservations:
    """A gate's figures as OpenTelemetry's metrics, read when these are exported: to record each costs a span's time.

    Args:
        find: returns the gate's connection.
        provider: of meters; the global one by default.
    """

    def __init__(self, find: Callable[[], Connection], provider: MeterProvider | None) -> None:
        self._find = find
        meter = metrics.get_meter(SCOPE, meter_provider=provider)
        for name, unit, text, observe in (
            ("operations", "{operation}", "Operations answered.", self._operations),
            ("degraded", "{operation}", "Asked the policy instead.", self._degraded),
            ("conflicts", "{key}", "Keys with two owners after an outage.", self._conflicts),
            ("reconciled", "{key}", "Records put into the store after an outage.", self._one("adopted")),
            ("unreplayed", "{key}", "Records that never got into the store.", self._one("unreplayed")),
            ("leases_lost", "{lease}", "Leases that could not be renewed.", self._one("leases_lost")),
            ("undone", "{key}", "Given-up claims and ids that were taken back.", self._undone),
            ("undo.overflows", "{key}", "Given-up claims nobody takes back.", self._one("undo_overflows")),
            ("shortfalls", "{operation}", "Too few replicas confirmed.", self._shortfalls),
            ("breaker.opened", "{time}", "How often the breaker opened.", self._one("opened")),
            ("primary_restarts", "{time}", "Primaries that came back as another.", self._one("restarted")),
            ("clock_skews", "{time}", "How often a node's clock was off.", self._one("clock_skews")),
            ("store.calls", "{call}", "Batches to the store.", self._calls),
            ("store.time", "s", "Seconds of the batches to the store, added up.", self._time),
            ("store.operations", "{operation}", "Operations in these batches.", self._one("batched")),
            ("ledger.ids", "{id}", "Ids of ledgers by their answer.", self._ids),
            ("gate_bypassed", "{call}", "Calls of an inbox whose gate did not answer.", self._bypassed),
            ("dead_letters", "{message}", "Messages laid where dead letters lie.", self._dead_letters),
        ):
            meter.create_observable_counter(f"fastdedup.{name}", [observe], unit=unit, description=text)
        for name, unit, text, observe in (
            ("pending", "{operation}", "Operations waiting or under way.", self._pending),
            ("breaker.open", "1", "1 while the store, or a part of it, is not asked.", self._breaker),
            ("journal.records", "{record}", "To be put into the store.", self._journals),
            ("undo.pending", "{key}", "Given-up claims and ids to be taken back.", self._undo_pending),
            ("consumer.paused", "1", "1 while a consumer waits for a store or its broker.", self._paused),
        ):
            meter.create_observable_gauge(f"fastdedup.{name}", [observe], unit=unit, description=text)

    @property
    def _counters(self) -> GateCounters:
        return self._find().count()

    def _one(self, name: str) -> Observe:
        """Return what observes a count that has no attributes."""
        return lambda options: [Observation(getattr(self._counters, name))]

    def _operations(self, options: CallbackOptions) -> Iterator[Observation]:
        counters = self._counters
        counts = {(namespace, verb, "unavailable"): 0 for namespace, verb in counters.seen()}
        for namespace, verb, outcome, cells in counters.answers():
            counts[namespace, verb, outcome] = int(sum(cells[:-1]))
        return observed(counts, "namespace", "verb", "outcome")

    def _degraded(self, options: CallbackOptions) -> Iterator[Observation]:
        counters = self._counters
        counts = {
            (namespace, verb_at_policy(verb), answered): 0
            for namespace, verb in counters.seen()
            for answered in ("yes", "no")
        }
        return observed(counts | counters.degraded, "namespace", "verb", "answered")

    def _conflicts(self, options: CallbackOptions) -> Iterator[Observation]:
        return observed(by_one(self._counters.conflicts), "kept")

    def _shortfalls(self, options: CallbackOptions) -> Iterator[Observation]:
        counters = self._counters
        counts = {(namespace,): 0 for namespace, _ in counters.seen()}
        return observed(counts | by_one(counters.shortfalls), "namespace")

    def _undone(self, options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(self._find().undo_counts()[0])]

    def _undo_pending(self, options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(self._find().undo_counts()[1])]

    def _journals(self, options: CallbackOptions) -> Iterator[Observation]:
        return observed(by_one(self._find().journals()), "namespace")

    def _ids(self, options: CallbackOptions) -> Iterator[Observation]:
        return observed(self._counters.ledger_ids, "namespace", "ledger", "answer")

    def _bypassed(self, options: CallbackOptions) -> Iterator[Observation]:
        return observed(self._counters.bypassed, "namespace", "inbox")

    def _dead_letters(self, options: CallbackOptions) -> Iterator[Observation]:
        return observed(self._counters.dead_letters, "consumer", "reason")

    def _paused(self, options: CallbackOptions) -> Iterator[Observation]:
        return observed(by_one(self._counters.paused), "consumer")

    def _calls(self, options: CallbackOptions) -> Iterator[Observation]:
        for verb, cells in list(self._counters.store_calls.items()):
            yield Observation(int(sum(cells[:-1])), {"db.stored_procedure.name": verb})

    def _time(self, options: CallbackOptions) -> Iterator[Observation]:
        for verb, cells in list(self._counters.store_calls.items()):
            yield Observation(cells[-1], {"db.stored_procedure.name": verb})

    def _pending(self, options: CallbackOptions) -> Iterable[Observation]:
        engine = self._find().engine
        return [Observation(0 if engine is None else engine.pending)]

    def _breaker(self, options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(int(self._find().breaker is not BreakerState.CLOSED))]


def observe_messages(messages: WatchedMessages, provider: MeterProvider | None) -> None:
    """Show the counts of consumers and inboxes as metrics, read when these are exported; `provider` as above."""
    meter = metrics.get_meter(SCOPE, meter_provider=provider)
    for figure in messages.figures():
        meter.create_observable_counter(
            f"fastdedup.{figure.name.replace('_', '.')}",
            [observing(figure.present, *figure.labels)],
            unit=f"{{{figure.unit}}}",
            description=figure.text,
        )


def observing(count: Callable[[], Mapping[Any, int]], *labels: str) -> Observe:
    """Return what observes counts by their labels."""
    return lambda options: observed(count(), *labels)


def observed(counts: Mapping[Any, int], *labels: str) -> Iterator[Observation]:
    """Yield counts by their labels; another thread may change them meanwhile."""
    for values, count in list(counts.items()):
        yield Observation(
            count, {f"fastdedup.{label}": str(value) for label, value in zip(labels, values, strict=True)}
        )


class Histograms:
    """Records each time that a gate measures in OpenTelemetry's histograms: the `Durations` of its counters.

    Args:
        connection: the gate's.
        provider: of meters; the global one by default.
    """

    def __init__(self, connection: Connection, provider: MeterProvider | None) -> None:
        self._connection = connection
        meter = metrics.get_meter(SCOPE, meter_provider=provider)
        self._operation, self._wait, self._store = [
            meter.create_histogram(
                name, unit="s", description=text, explicit_bucket_boundaries_advisory=_BOUNDARIES
            )
            for name, text in (
                ("fastdedup.operation.duration", "From an operation's beginning to its answer."),
                ("fastdedup.wait.duration", "Waiting of claims for other owners."),
                ("db.client.operation.duration", "Batches to the store."),
            )
        ]
        # Mutable: the attributes by namespace, verb and outcome, which are few; by the store's name and verb.
        self._operations: dict[tuple[str, str, str], Attributes] = {}
        self._calls: dict[tuple[str, str], Attributes] = {}

    def took(self, namespace: str, verb: str, outcome: str, seconds: float) -> None:
        """Record an operation."""
        names = (namespace, verb, outcome)
        attributes = self._operations.get(names)
        if attributes is None:
            attributes = self._operations[names] = {
                "fastdedup.namespace": namespace,
                "fastdedup.verb": verb,
                "fastdedup.outcome": str(outcome),
            }
        self._operation.record(seconds, attributes)

    def waited(self, namespace: str, seconds: float) -> None:
        """Record a wait."""
        self._wait.record(seconds, {"fastdedup.namespace": namespace})

    def called(self, verb: str, seconds: float) -> None:
        """Record a batch to Redis; no other store is a database of the conventions."""
        part = self._connection.part_of(b"").decode()
        attributes = self._calls.get((part, verb))
        if attributes is None:
            attributes = self._attributes_of(part, verb)
            if len(self._calls) < _MOST_CALLS:
                self._calls[part, verb] = attributes
        if attributes:
            self._store.record(seconds, attributes)

    def _attributes_of(self, part: str, verb: str) -> Attributes:
        attributes = server_of(part)
        if not attributes:
            return {}
        if isinstance(self._connection.store, ShardedStore):  # which node it was is not told
            attributes = {name: value for name, value in attributes.items() if name.startswith("db.")}
        return {**attributes, "db.stored_procedure.name": verb}


def server_of(part: str | bytes) -> dict[str, str | int]:
    """Return the attributes of a part of the store, by its name as events show it."""
    name = part if isinstance(part, str) else part.decode()
    if not name.startswith(_OF_REDIS):
        return {}
    address = name.removeprefix(_OF_REDIS)
    host, _, port = address.rpartition(":")
    where: dict[str, str | int] = {"db.system.name": "redis", "db.operation.name": _COMMAND}
    if address.startswith("/") or not port.isdigit():
        return {**where, "server.address": address}
    return {**where, "server.address": host.strip("[]"), "server.port": int(port)}
