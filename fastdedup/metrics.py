"""The figures of gates in Prometheus' format, named in one place: for a sidecar's `/metrics`, and for programs.

Labels are bounded: namespaces, ledgers, inboxes and consumers are those of the program, all others are fastdedup's
own words. A key is never a label. To add a figure: count it in `GateCounters`, and name it in `GateFamilies`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
except ImportError as error:
    raise ImportError("metrics need prometheus_client: pip install 'fastdedup[prometheus]'") from error

from .core.counters import BOUNDS, SIZES, Cells, GateCounters, by_one, empty_cells, verb_at_policy
from .model import BreakerState


class EngineState(Protocol):
    """The present state of a gate, as far as the figures show it: a `Dedup` is one."""

    @property
    def pending(self) -> int:
        """Operations waiting or under way."""
        ...

    @property
    def in_flight(self) -> int:
        """Batches under way."""
        ...

    @property
    def breaker(self) -> BreakerState:
        """Whether the store is asked."""
        ...


class WatchedGate:
    """A gate whose figures are shown.

    Args:
        counters: count what it does.
        engine: its present state.
        journals: returns the number of records that wait for the store, by namespace.
        undone: returns how many claims and ids were taken back, and how many are still to be.
    """

    def __init__(
        self,
        counters: GateCounters,
        engine: EngineState,
        journals: Callable[[], Mapping[str, int]],
        undone: Callable[[], tuple[int, int]],
    ) -> None:
        self.counters = counters
        self.engine = engine
        self.journals = journals
        self.undone = undone


DEAD_LETTER_REASONS = ("failed", "exhausted", "mismatch", "no_key")


class GateFamilies:
    """Turns the figures of gates into metric families; the figures of several gates are added up.

    Args:
        gates: the gates.
        consumers: the names of consumers whose troubles stand at 0 before there is one.
    """

    def __init__(self, gates: Sequence[WatchedGate], consumers: Iterable[str] = ()) -> None:
        self._gates = gates
        self._consumers = [*consumers]
        self._all = [gate.counters for gate in gates]

    def __iter__(self) -> Iterator[Metric]:
        yield from self._operations()
        yield from self._engine()
        yield from self._outage()
        yield from self._undone()
        yield from self._messages()

    def _operations(self) -> Iterator[Metric]:
        counts: Counter[tuple[str, ...]] = total(counters.zeros() for counters in self._all)
        by_verb: defaultdict[str, Cells] = defaultdict(empty_cells)
        for counters in self._all:
            for namespace, verb, outcome, cells in counters.answers():
                counts[namespace, verb, outcome] += sum(cells[:-1])  # type: ignore[assignment]
                by_verb[verb] = added(by_verb[verb], cells)
        labels = ["namespace", "verb", "outcome"]
        yield family(CounterMetricFamily, "operations", "Operations answered.", labels, counts)
        yield histogram("operation_seconds", "From an operation's beginning to its answer.", "verb", by_verb)
        waits = summed(counters.waits for counters in self._all)
        yield histogram("wait_seconds", "Waiting of claims for other owners.", "namespace", waits)
        labels = ["namespace", "ledger", "answer"]
        ids = total(counters.ledger_ids for counters in self._all)
        yield family(CounterMetricFamily, "ledger_ids", "Ids by their answer.", labels, ids)

    def _engine(self) -> Iterator[Metric]:
        sizes = HistogramMetricFamily("fastdedup_batch_size", "Operations in one batch to the store.")
        batches = [sum(each) for each in zip(*(counters.batches for counters in self._all), strict=True)]
        if batches:
            sizes.add_metric([], _buckets(SIZES, batches), sum(counters.batched for counters in self._all))
        yield sizes
        calls = summed(counters.store_calls for counters in self._all)
        yield histogram("store_call_seconds", "Batches to the store, by its verb.", "verb", calls)
        yield gauge(
            "pending_operations", "Waiting or under way.", sum(each.engine.pending for each in self._gates)
        )
        yield gauge(
            "batches_in_flight", "Batches under way.", sum(each.engine.in_flight for each in self._gates)
        )

    def _outage(self) -> Iterator[Metric]:
        now = {gate.engine.breaker for gate in self._gates}
        states = {(state.value,): int(state in now) for state in BreakerState}
        yield family(GaugeMetricFamily, "breaker_state", "1 for the state it is in.", ["state"], states)
        yield counter("breaker_opened", "How often the breaker opened.", self._sum("opened"))
        restarts = "Primaries that came back as another process."
        yield counter("primary_restarts", restarts, self._sum("restarted"))
        switches = "Failovers that left a primary that still answered."
        yield counter("primary_switches", switches, self._sum("switched"))
        labels = ["namespace", "verb", "answered"]
        degraded = total(counters.degraded for counters in self._all)
        for namespace, verb in self._seen():
            for answered in ("yes", "no"):
                degraded[namespace, verb_at_policy(verb), answered] += 0
        yield family(CounterMetricFamily, "degraded", "Asked the policy instead.", labels, degraded)
        lines = total(gate.journals() for gate in self._gates)
        text = "To be put into the store."
        yield family(GaugeMetricFamily, "journal_records", text, ["namespace"], by_one(lines))
        kept = by_one(total(counters.conflicts for counters in self._all))
        yield family(CounterMetricFamily, "reconcile_conflicts", "Two owners of one key.", ["kept"], kept)
        yield counter("reconciled", "Records put into the store after an outage.", self._sum("adopted"))
        yield counter("unreplayed", "Records that never got into the store.", self._sum("unreplayed"))
        yield counter("leases_lost", "Claims whose owner held them no longer.", self._sum("leases_lost"))
        yield counter("clock_skews", "How often a Redis node's clock was off.", self._sum("clock_skews"))
        short = total(counters.shortfalls for counters in self._all)
        for namespace, _ in self._seen():
            short[namespace] += 0
        text = "Too few replicas confirmed."
        yield family(CounterMetricFamily, "shortfalls", text, ["namespace"], by_one(short))

    def _undone(self) -> Iterator[Metric]:
        undone = [gate.undone() for gate in self._gates]
        yield counter(
            "undone", "Given-up claims and ids that were taken back.", sum(each[0] for each in undone)
        )
        yield gauge(
            "undo_pending", "Given-up claims and ids to be taken back.", sum(each[1] for each in undone)
        )
        yield counter(
            "undo_overflows", "Given-up claims that nobody takes back.", self._sum("undo_overflows")
        )

    def _messages(self) -> Iterator[Metric]:
        bypassed = total(counters.bypassed for counters in self._all)
        text = "Calls of an inbox whose gate did not answer."
        yield family(CounterMetricFamily, "gate_bypassed", text, ["namespace", "inbox"], bypassed)
        letters = total(counters.dead_letters for counters in self._all)
        for consumer in self._consumers:
            for reason in DEAD_LETTER_REASONS:
                letters[consumer, reason] += 0
        text = "Messages laid where dead letters lie."
        yield family(CounterMetricFamily, "dead_letters", text, ["consumer", "reason"], letters)
        paused = total(counters.paused for counters in self._all)
        for consumer in self._consumers:
            paused[consumer] += 0
        text = "1 while a consumer waits for a store, or for its broker."
        yield family(GaugeMetricFamily, "consumer_paused", text, ["consumer"], by_one(paused))

    def _seen(self) -> set[tuple[str, str]]:
        """Return namespaces and their verbs, whose troubles stand at 0: see `GateCounters.expect`."""
        return set().union(*(counters.seen() for counters in self._all))

    def _sum(self, name: str) -> int:
        return sum(getattr(counters, name) for counters in self._all)


# Adding up


def added(some: Cells, others: Cells) -> Cells:
    """Return the sums of two rows of cells."""
    return [a + b for a, b in zip(some, others, strict=True)]


def summed(several: Iterable[Mapping[str, Cells]]) -> dict[str, Cells]:
    """Return cells by their label, added up."""
    sums: defaultdict[str, Cells] = defaultdict(empty_cells)
    for cells in several:
        for label, row in list(cells.items()):
            sums[label] = added(sums[label], row)
    return sums


def total(several: Iterable[Mapping[Any, int]]) -> Counter[Any]:
    """Return counts by their labels, added up."""
    sums: Counter[Any] = Counter()
    for counts in several:
        for labels, count in list(counts.items()):
            sums[labels] += count
    return sums


# Families


def histogram(name: str, text: str, label: str, cells: Mapping[str, Cells]) -> Metric:
    """Return a histogram in seconds with one label."""
    times = HistogramMetricFamily(f"fastdedup_{name}", text, labels=[label])
    for value, row in cells.items():
        times.add_metric([value], _buckets(BOUNDS, row[:-1]), row[-1])
    return times


def gauge(name: str, text: str, value: float) -> Metric:
    """Return a gauge without labels."""
    return GaugeMetricFamily(f"fastdedup_{name}", text, value=value)


def counter(name: str, text: str, value: float) -> Metric:
    """Return a counter without labels."""
    return CounterMetricFamily(f"fastdedup_{name}", text, value=value)


def family(kind: Any, name: str, text: str, labels: list[str], values: Mapping[Any, float]) -> Metric:
    """Return a family with labels."""
    made: Metric = kind(f"fastdedup_{name}", text, labels=labels)
    for key, value in list(values.items()):
        made.add_metric(list(key), value)  # type: ignore[attr-defined]
    return made


def _buckets(bounds: tuple[float, ...], cells: Sequence[float]) -> list[tuple[str, float]]:
    """Return Prometheus' buckets: each counts everything up to its bound."""
    so_far, buckets = 0.0, []
    for bound, count in zip((*map(str, bounds), "+Inf"), cells, strict=True):
        so_far += count
        buckets.append((bound, so_far))
    return buckets
