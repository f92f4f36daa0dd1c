"""The metrics of a gate for OpenTelemetry; `integrations/opentelemetry.py` makes them.

To add a figure: count it in `GateCounters`, and name it in `GateObservations`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from ..gate.connection import Connection
from ..gate.counters import BOUNDS, GateCounters
from ..model import BreakerState
from ..stores.base import ShardedStore

SCOPE: Final = "fastdedup"
_OF_REDIS: Final = "Redis at "
_COMMAND: Final = "EVALSHA"
"""The command of Redis that every operation of the gate is sent by, many of them at once."""
_BOUNDARIES: Final = sorted({*BOUNDS, 5.0})
"""The buckets of the histograms: those of OpenTelemetry's conventions for databases, and finer ones among them."""
_MOST_CALLS: Final = 1000
"""Attributes of batches that are kept: those of some 60 addresses that a Sentinel names."""
Attributes = dict[str, str | int]


class GateObservations:
    """A gate's figures as OpenTelemetry's metrics, read when these are exported: to record each costs a span's time.

    Args:
        connection: the gate's.
        provider: of meters; the global one by default.
    """

    def __init__(self, find: Callable[[], Connection], provider: MeterProvider | None) -> None:
        self._find = find
        meter = metrics.get_meter(SCOPE, meter_provider=provider)
        for name, unit, text, observe in (
            ("fastdedup.operations", "{operation}", "Operations answered.", self._operations),
            ("fastdedup.degraded", "{operation}", "Asked the policy instead.", self._degraded),
            ("fastdedup.conflicts", "{key}", "Keys with two owners after an outage.", self._conflicts),
            ("fastdedup.leases_lost", "{lease}", "Leases that could not be renewed.", self._leases_lost),
            ("fastdedup.store.calls", "{call}", "Batches to the store.", self._calls),
            ("fastdedup.store.time", "s", "Seconds of the batches to the store, added up.", self._time),
            ("fastdedup.ledger.ids", "{id}", "Ids of ledgers by their answer.", self._ids),
        ):
            meter.create_observable_counter(name, [observe], unit=unit, description=text)
        for name, unit, text, observe in (
            ("fastdedup.pending", "{operation}", "Operations waiting or under way.", self._pending),
            (
                "fastdedup.breaker.open",
                "1",
                "1 while the store, or a part of it, is not asked.",
                self._breaker,
            ),
        ):
            meter.create_observable_gauge(name, [observe], unit=unit, description=text)

    @property
    def _counters(self) -> GateCounters:
        return self._find().count()

    def _operations(self, options: CallbackOptions) -> Iterator[Observation]:
        for namespace, verb, outcome, cells in self._counters.answers():
            attributes = {
                "fastdedup.namespace": namespace,
                "fastdedup.verb": verb,
                "fastdedup.outcome": outcome,
            }
            yield Observation(int(sum(cells[:-1])), attributes)

    def _degraded(self, options: CallbackOptions) -> Iterator[Observation]:
        for (namespace, verb, answered), count in list(self._counters.degraded.items()):
            attributes = {
                "fastdedup.namespace": namespace,
                "fastdedup.verb": verb,
                "fastdedup.answered": answered,
            }
            yield Observation(count, attributes)

    def _conflicts(self, options: CallbackOptions) -> Iterator[Observation]:
        for kept, count in list(self._counters.conflicts.items()):
            yield Observation(count, {"fastdedup.kept": kept})

    def _leases_lost(self, options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(self._counters.leases_lost)]

    def _ids(self, options: CallbackOptions) -> Iterator[Observation]:
        for (namespace, ledger, answer), count in list(self._counters.ledger_ids.items()):
            attributes = {
                "fastdedup.namespace": namespace,
                "fastdedup.ledger": ledger,
                "fastdedup.answer": answer,
            }
            yield Observation(count, attributes)

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
