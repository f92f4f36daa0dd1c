"""The metrics of a gate for OpenTelemetry; `integrations/opentelemetry.py` makes them.

To add a figure: count it in `GateCounters`, and name it in `_COUNTERS` or `_GAUGES`. Those of messages: `watched.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from ..core.connections import Connections
from ..core.counters import BOUNDS, by_one, verb_at_policy
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
Labels = tuple[str, ...]
Values = Mapping[Any, float]
_SPACE: Final = ("namespace",)
_PROCEDURE: Final = "db.stored_procedure.name"


class Figure(NamedTuple):
    """A metric of gates, which is read when it is exported: to record each value costs a span's time.

    Attributes:
        name: without "fastdedup.".
        unit: of its values.
        text: says what it is.
        labels: the names of its attributes.
        read: returns one gate's values, by those of the attributes.
    """

    name: str
    unit: str
    text: str
    labels: tuple[str, ...]
    read: Callable[[Connections], Values]


def _operations(connections: Connections) -> Values:
    counters = connections.count()
    counts: dict[Labels, float] = {**counters.zeros()}
    for *names, cells in counters.answers():
        counts[tuple(names)] = int(sum(cells[:-1]))
    return counts


def _degraded(connections: Connections) -> Values:
    counters = connections.count()
    counts: dict[Labels, float] = {
        (namespace, verb_at_policy(verb), answered): 0
        for namespace, verb in counters.seen()
        for answered in ("yes", "no")
    }
    return counts | counters.degraded


def _shortfalls(connections: Connections) -> Values:
    counters = connections.count()
    counts: dict[Labels, float] = {(namespace,): 0 for namespace, _ in counters.seen()}
    return counts | by_one(counters.shortfalls)


def _calls(connections: Connections) -> Values:
    return {(verb,): int(sum(cells[:-1])) for verb, cells in list(connections.count().store_calls.items())}


def _seconds(connections: Connections) -> Values:
    return {(verb,): cells[-1] for verb, cells in list(connections.count().store_calls.items())}


def _pending(connections: Connections) -> Values:
    engine = connections.here().engine
    return {(): 0 if engine is None else engine.pending}


def _counted(name: str) -> Callable[[Connections], Values]:
    """Return what finds a count of `GateCounters` that has no attributes."""
    return lambda connections: {(): getattr(connections.count(), name)}


_COUNTERS: Final = (
    Figure("operations", "{operation}", "Operations answered.", (*_SPACE, "verb", "outcome"), _operations),
    Figure("degraded", "{operation}", "Asked the policy instead.", (*_SPACE, "verb", "answered"), _degraded),
    Figure(
        "conflicts",
        "{key}",
        "Keys with two owners after an outage.",
        ("kept",),
        lambda connections: by_one(connections.count().conflicts),
    ),
    Figure("reconciled", "{key}", "Records put into the store after an outage.", (), _counted("adopted")),
    Figure("unreplayed", "{key}", "Records that never got into the store.", (), _counted("unreplayed")),
    Figure("leases_lost", "{lease}", "Claims whose owner held them no longer.", (), _counted("leases_lost")),
    Figure(
        "undone",
        "{key}",
        "Given-up claims and ids that were taken back.",
        (),
        lambda connections: {(): connections.undo_counts()[0]},
    ),
    Figure("undo.overflows", "{key}", "Given-up claims nobody takes back.", (), _counted("undo_overflows")),
    Figure("shortfalls", "{operation}", "Too few replicas confirmed.", _SPACE, _shortfalls),
    Figure("breaker.opened", "{time}", "How often the breaker opened.", (), _counted("opened")),
    Figure("primary_restarts", "{time}", "Primaries that came back as another.", (), _counted("restarted")),
    Figure("primary_switches", "{time}", "Primaries left though they answered.", (), _counted("switched")),
    Figure("clock_skews", "{time}", "How often a node's clock was off.", (), _counted("clock_skews")),
    Figure("store.calls", "{call}", "Batches to the store.", (_PROCEDURE,), _calls),
    Figure("store.time", "s", "Seconds of the batches to the store, added up.", (_PROCEDURE,), _seconds),
    Figure("store.operations", "{operation}", "Operations in these batches.", (), _counted("batched")),
    Figure(
        "ledger.ids",
        "{id}",
        "Ids of ledgers by their answer.",
        (*_SPACE, "ledger", "answer"),
        lambda connections: connections.count().ledger_ids,
    ),
    Figure(
        "gate_bypassed",
        "{call}",
        "Calls of an inbox whose gate did not answer.",
        (*_SPACE, "inbox"),
        lambda connections: connections.count().bypassed,
    ),
    Figure(
        "dead_letters",
        "{message}",
        "Messages laid where dead letters lie.",
        ("consumer", "reason"),
        lambda connections: connections.count().dead_letters,
    ),
)
_GAUGES: Final = (
    Figure("pending", "{operation}", "Operations waiting or under way.", (), _pending),
    Figure(
        "breaker.open",
        "{gate}",
        "Gates whose store, or a part of it, is not asked.",
        (),
        lambda connections: {(): int(connections.breaker is not BreakerState.CLOSED)},
    ),
    Figure(
        "journal.records",
        "{record}",
        "To be put into the store.",
        _SPACE,
        lambda connections: by_one(connections.journals()),
    ),
    Figure(
        "undo.pending",
        "{key}",
        "Given-up claims and ids to be taken back.",
        (),
        lambda connections: {(): connections.undo_counts()[1]},
    ),
    Figure(
        "consumer.paused",
        "1",
        "1 while a consumer waits for a store or its broker.",
        ("consumer",),
        lambda connections: by_one(connections.count().paused),
    ),
)


class Observations:
    """The figures of all that a program instruments with one provider of meters, added up.

    One for each provider: of two metrics with one name the SDK would show the first alone.

    Args:
        provider: of meters; the global one by default.
    """

    def __init__(self, provider: MeterProvider | None) -> None:
        # Mutable: what finds the connections of each gate; the consumers and inboxes.
        self._gates: dict[int, Callable[[], Connections]] = {}
        self.messages = WatchedMessages()
        meter = metrics.get_meter(SCOPE, meter_provider=provider)
        for figure in _COUNTERS:
            meter.create_observable_counter(
                f"fastdedup.{figure.name}",
                [self._observing(figure)],
                unit=figure.unit,
                description=figure.text,
            )
        for figure in _GAUGES:
            meter.create_observable_gauge(
                f"fastdedup.{figure.name}",
                [self._observing(figure)],
                unit=figure.unit,
                description=figure.text,
            )
        for each in self.messages.figures():
            create = meter.create_observable_gauge if each.is_gauge else meter.create_observable_counter
            create(
                f"fastdedup.{each.name.replace('_', '.')}",
                [observing(each.present, *each.labels)],
                unit=f"{{{each.unit}}}",
                description=each.text,
            )

    def add(self, gate: object, find: Callable[[], Connections]) -> None:
        """Show a gate's figures as well. `find` returns its connections, and keeps them alive."""
        self._gates[id(gate)] = find

    def _observing(self, figure: Figure) -> Observe:
        def summed() -> Values:
            sums: dict[Labels, float] = {}
            for find in list(self._gates.values()):
                for labels, value in list(figure.read(find()).items()):
                    sums[labels] = sums.get(labels, 0) + value
            return sums

        return observing(summed, *figure.labels)


_observations: WeakKeyDictionary[MeterProvider, Observations] = WeakKeyDictionary()
_of_the_global_provider: list[Observations] = []
_lock = Lock()


def observations_of(provider: MeterProvider | None) -> Observations:
    """Return what a provider's metrics show; made once."""
    with _lock:
        if provider is None:
            if not _of_the_global_provider:
                _of_the_global_provider.append(Observations(None))
            return _of_the_global_provider[0]
        found = _observations.get(provider)
        if found is None:
            found = _observations[provider] = Observations(provider)
        return found


def observing(count: Callable[[], Mapping[Any, float]], *labels: str) -> Observe:
    """Return what observes values by those of their attributes."""
    names = [label if "." in label else f"fastdedup.{label}" for label in labels]

    def observe(options: CallbackOptions) -> Iterator[Observation]:
        for values, value in list(count().items()):
            yield Observation(value, {name: str(each) for name, each in zip(names, values, strict=True)})

    return observe


class Histograms:
    """Records each time that a gate measures in OpenTelemetry's histograms: the `Durations` of its counters.

    Args:
        connections: the gate's.
        provider: of meters; the global one by default.
    """

    def __init__(self, connections: Connections, provider: MeterProvider | None) -> None:
        self._connections = connections
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
        part = self._connections.here().part_of(b"").decode()
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
        if isinstance(self._connections.here().store, ShardedStore):  # which node it was is not told
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
