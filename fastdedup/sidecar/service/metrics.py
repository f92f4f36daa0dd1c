"""`/metrics`: the sidecar's counters in Prometheus' format.

Labels are bounded: namespaces by `Limits.namespaces`, all others by fastdedup's own names. To add a figure: count it
in `Counters`, and name it in `Collector.collect`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from platform import python_version
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector as BaseCollector

from ... import __version__
from ...compiled import build
from ...fallback.base import JournalledPolicy
from ...model import BreakerState
from ..counters import BOUNDS, SIZES, Cells, empty_cells
from ..namespaces import Namespaces


class Exposition:
    """Renders `/metrics` for one sidecar."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._counters = namespaces.counters
        self._registry = CollectorRegistry()
        self._registry.register(Collector(namespaces))
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        """Return every figure, in Prometheus' text format."""
        self._counters.fold()
        return generate_latest(self._registry)


class Collector(BaseCollector):
    """Turns `Counters`, and the present state of the engine and the journals, into metric families."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._counters = namespaces.counters
        self._namespaces = namespaces

    def collect(self) -> Iterator[Metric]:
        """Yield every family (prometheus_client calls this)."""
        yield build_info()
        yield from self._operations()
        yield from self._engine()
        yield from self._outage()
        yield from self._connections()

    def _operations(self) -> Iterator[Metric]:
        counts = CounterMetricFamily(
            "fastdedup_operations", "Operations answered.", labels=["namespace", "verb", "outcome"]
        )
        times = HistogramMetricFamily(
            "fastdedup_operation_seconds", "From reading a request to its answer.", labels=["verb"]
        )
        by_verb: defaultdict[str, Cells] = defaultdict(empty_cells)
        for (namespace, verb), outcomes in list(self._counters.operations.items()):
            for outcome, cells in list(outcomes.items()):
                counts.add_metric([namespace, verb, outcome], sum(cells[:-1]))
                by_verb[verb] = [a + b for a, b in zip(by_verb[verb], cells, strict=True)]
        for verb, cells in by_verb.items():
            times.add_metric([verb], _buckets(BOUNDS, cells[:-1]), cells[-1])
        yield counts
        yield times
        labels = ["namespace", "ledger", "answer"]
        yield _family(
            CounterMetricFamily, "ledger_ids", "Ids by their answer.", labels, self._counters.ledger_ids
        )

    def _engine(self) -> Iterator[Metric]:
        root = self._namespaces.root
        sizes = HistogramMetricFamily("fastdedup_batch_size", "Operations in one batch to the store.")
        sizes.add_metric([], _buckets(SIZES, self._counters.batches), self._counters.batched)
        yield sizes
        yield _gauge("pending_operations", "Waiting or under way.", root.pending)
        yield _gauge("batches_in_flight", "Batches under way.", root.in_flight)

    def _outage(self) -> Iterator[Metric]:
        counters, now = self._counters, self._namespaces.root.breaker
        states = {(state.value,): int(state is now) for state in BreakerState}
        yield _family(GaugeMetricFamily, "breaker_state", "1 for the state it is in.", ["state"], states)
        yield _counter("breaker_opened", "How often the breaker opened.", counters.opened)
        yield _counter("primary_restarts", "Primaries that came back as another process.", counters.restarted)
        labels = ["namespace", "verb", "answered"]
        lines = {(name,): count for name, count in journal_lines(self._namespaces).items()}
        yield _family(CounterMetricFamily, "degraded", "Asked the policy instead.", labels, counters.degraded)
        yield _family(GaugeMetricFamily, "journal_records", "To be put into the store.", ["namespace"], lines)
        kept = {(name,): count for name, count in counters.conflicts.items()}
        yield _family(CounterMetricFamily, "reconcile_conflicts", "Two owners of one key.", ["kept"], kept)
        yield _counter("reconciled", "Records put into the store after an outage.", counters.adopted)
        yield _counter("unreplayed", "Records that never got into the store.", counters.unreplayed)
        yield _counter("leases_lost", "Leases that could not be renewed.", counters.leases_lost)
        yield _counter("clock_skews", "How often a Redis node's clock was off.", counters.clock_skews)
        short = {(name,): count for name, count in counters.shortfalls.items()}
        yield _family(CounterMetricFamily, "shortfalls", "Too few replicas confirmed.", ["namespace"], short)

    def _connections(self) -> Iterator[Metric]:
        open_now: Counter[tuple[str, ...]] = Counter({("resp",): 0, ("http",): 0, ("unknown",): 0})
        for connection in list(self._counters.connections()):
            open_now[(wire_of(connection),)] += 1
        yield _family(GaugeMetricFamily, "connections", "Open, by their protocol.", ["wire"], open_now)
        yield _counter("connections_refused", "Too many, or not allowed.", self._counters.connections_refused)
        memory, ephemeral = self._namespaces.memory, self._namespaces.ephemeral
        refused = {(path,): access.refused for path, access in self._namespaces.behind_sockets.items()}
        yield _family(CounterMetricFamily, "quota_refusals", "Over a socket's quota.", ["socket"], refused)
        yield _counter("connections_cut", "Clients that did not read, and were hung up on.", memory.cut)
        yield _gauge("reply_bytes_reserved", "Large replies that wait for their turn.", memory.reserved)
        yield _gauge("ephemeral_claims", "EPHEMERAL claims that clients hold.", ephemeral.count)
        yield _gauge("releases_waiting", "Claims of clients that have gone.", len(ephemeral.releases))
        yield _counter(
            "bad_requests", "Requests of either wire that could not be run.", self._counters.bad_requests
        )


def build_info() -> Metric:
    """Return the figure that tells this build, to compare sidecars: always 1."""
    labels = {"version": __version__, "python": python_version(), "build": build()}
    return _family(GaugeMetricFamily, "build_info", "This build.", list(labels), {tuple(labels.values()): 1})


def journal_lines(namespaces: Namespaces) -> dict[str, int]:
    """Return how many records each journal has for the store, under the first namespace that uses the journal."""
    found: dict[int, tuple[str, int]] = {}
    for dedup in namespaces.dedups():
        policy = dedup.settings.on_unavailable
        if isinstance(policy, JournalledPolicy):
            found.setdefault(id(policy), (dedup.settings.namespace, policy.lines))
    return dict(found.values())


def wire_of(connection: object) -> str:
    """Return the protocol of a connection, or "unknown" where it has not sent anything yet."""
    name = type(connection).__name__
    return "resp" if name == "RespConnection" else "unknown" if name == "Sniffer" else "http"


def _buckets(bounds: tuple[float, ...], cells: list[Any]) -> list[tuple[str, float]]:
    """Return Prometheus' buckets: each counts everything up to its bound."""
    total, buckets = 0.0, []
    for bound, count in zip((*map(str, bounds), "+Inf"), cells, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"fastdedup_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"fastdedup_{name}", text, value=value)


def _family(kind: Any, name: str, text: str, labels: list[str], values: dict[Any, int]) -> Metric:
    family: Metric = kind(f"fastdedup_{name}", text, labels=labels)
    for key, value in list(values.items()):
        family.add_metric(list(key), value)  # type: ignore[attr-defined]
    return family
