"""The sums of several gates' figures, for the rows of `core/figures.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from ..declarations import Figure, Labels
from ..kernel.engine import Engine
from ..kernel.shards import ShardedEngine
from ..model import BreakerState
from .connections import Connections
from .counters import Cells, GateCounters, empty_cells, verb_at_policy
from .figures import BATCH_SIZE, OPERATION_SECONDS, STORE_CALL_SECONDS


@dataclass(frozen=True, slots=True)
class WatchedGate:
    """A gate whose figures are shown.

    Attributes:
        connections: the gate's, for its present state.
        counters: count its work.
        journals: returns the number of records that wait for the store, by namespace.
    """

    connections: Connections
    counters: GateCounters
    journals: Callable[[], Mapping[str, int]]


class Sums:
    """The figures of gates, added up.

    Args:
        gates: the gates.
        consumers: the names of consumers whose troubles are shown as 0 before there is one.
    """

    def __init__(self, gates: Sequence[WatchedGate], consumers: Iterable[str] = ()) -> None:
        self._gates = gates
        self._consumers = (*consumers,)
        self._all = [gate.counters for gate in gates]

    def of(self, figure: Figure) -> Mapping[Labels, Any]:
        """Return a figure's values by those of its labels; the values of a histogram are cells."""
        if figure.source is not None:
            return figure.read(self)
        if figure.kind == "histogram":
            return added(figure, (row for each in self._all for row in list(each.measured[figure].items())))
        sums = total(counters.counted.get(figure, {}) for counters in self._all)
        for labels in self._expected(figure):
            sums[labels] += 0
        return sums

    def _expected(self, figure: Figure) -> Iterable[Labels]:
        """Return the known labels of a figure that are shown as 0 before it has values.

        If a series begins with its first event, its rate does not show that event.
        """
        known = {"consumer": self._consumers, **figure.values}
        places: Iterable[Mapping[str, str]] = [{}]
        if "namespace" in figure.labels:
            places = [{"namespace": name, "verb": verb_at_policy(verb)} for name, verb in self._seen()]
        for place in places:
            yield from product(
                *((place[name],) if name in place else known.get(name, ()) for name in figure.labels)
            )

    def _seen(self) -> set[tuple[str, str]]:
        """Return the namespaces and verbs of all operations so far, and the expected: see `GateCounters.expect`."""
        return set().union(*(counters.seen() for counters in self._all))

    # Figures that no event feeds: see the rows' sources

    def operations(self) -> Counter[Labels]:
        """Return the number of operations by namespace, verb and outcome."""
        counts = total(counters.zeros() for counters in self._all)
        for counters in self._all:
            for *names, cells in counters.answers():
                counts[tuple(names)] += int(sum(cells[:-1]))
        return counts

    def operation_seconds(self) -> dict[Labels, Cells]:
        """Return the cells of operations by verb."""
        rows = [((verb,), cells) for each in self._all for _, verb, _, cells in each.answers()]
        return added(OPERATION_SECONDS, rows)

    def store_calls(self) -> dict[Labels, Cells]:
        """Return the cells of batches by the store's verb."""
        rows = [((verb,), row) for each in self._all for verb, row in list(each.store_calls.items())]
        return added(STORE_CALL_SECONDS, rows)

    def batches(self) -> dict[Labels, Cells]:
        """Return the cells of batches by their size."""
        return added(BATCH_SIZE, [((), each.batches) for each in self._all])

    def pending(self) -> int:
        """Return the number of operations waiting or under way."""
        return sum(engine.pending for engine in self._engines())

    def in_flight(self) -> int:
        """Return the number of batches under way."""
        return sum(engine.in_flight for engine in self._engines())

    def _engines(self) -> Iterable[Engine | ShardedEngine]:
        engines = [gate.connections.here().engine for gate in self._gates]
        return [engine for engine in engines if engine is not None]

    def breakers(self) -> Counter[BreakerState]:
        """Return the number of gates by the state of their breaker."""
        return Counter(gate.connections.breaker for gate in self._gates)

    def undone(self) -> tuple[int, int]:
        """Return how many orphans (claims and ids) were freed, and how many are not freed yet."""
        counts = [gate.connections.orphan_counts() for gate in self._gates]
        return sum(done for done, _ in counts), sum(left for _, left in counts)

    def journals(self) -> dict[Labels, int]:
        """Return the number of records that wait for the store, by namespace."""
        return {(name,): lines for name, lines in total(gate.journals() for gate in self._gates).items()}


def total(several: Iterable[Mapping[Any, int]]) -> Counter[Any]:
    """Return counts by their labels, added up."""
    sums: Counter[Any] = Counter()
    for counts in several:
        for labels, count in list(counts.items()):  # another thread may be counting
            sums[labels] += count
    return sums


def added(figure: Figure, rows: Iterable[tuple[Labels, Cells]]) -> dict[Labels, Cells]:
    """Return cells by their labels, added up."""
    sums: dict[Labels, Cells] = {}
    for labels, row in rows:
        former = sums.get(labels) or empty_cells(figure.bounds)
        sums[labels] = [a + b for a, b in zip(former, row, strict=True)]
    return sums
