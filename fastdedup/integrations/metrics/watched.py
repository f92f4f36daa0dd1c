"""The watched objects of a program: gates, consumers and inboxes. Prometheus and OpenTelemetry show the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from ...core.connections import Connections
from ...core.figures import FIGURES
from ...core.sums import Sums, WatchedGate
from ...declarations import Figure, Labels
from ...gateway import Dedup
from ...sync.gateway import Dedup as SyncDedup

_RESULTS: Final = ("first", "duplicate", "retried", "dead_lettered")
"""The outcomes of a delivery: attributes of `fastdedup.messages.Counts`."""
Counted = Counter[Labels]

CONSUMERS: Final = (
    Figure(
        "messages",
        "Deliveries by what came of them.",
        ("consumer", "result"),
        unit="{message}",
        source=lambda watched: watched.results(),
    ),
    Figure(
        "messages_delivered",
        "Messages that the broker delivered.",
        ("consumer",),
        unit="{message}",
        meter="messages.delivered",
        source=lambda watched: watched.summed("delivered"),
    ),
    Figure(
        "messages_held",
        "Messages that waited unacknowledged.",
        ("consumer",),
        unit="{message}",
        meter="messages.held",
        source=lambda watched: watched.summed("held"),
    ),
    Figure(
        "consumer_running",
        "Consumers whose run is at work.",
        ("consumer",),
        "gauge",
        unit="{consumer}",
        meter="consumer.running",
        source=lambda watched: watched.running(),
    ),
)
"""The figures of consumers of messages."""
INBOXES: Final = (
    Figure(
        "inbox_received",
        "Keys that an inbox received, by their outcome.",
        ("inbox", "outcome"),
        unit="{key}",
        meter="inbox.received",
        source=lambda watched: watched.received(),
    ),
)
"""The figures of inboxes."""


class Watched:
    """Gates, consumers and inboxes whose figures are shown together: the counts of equal names are added up."""

    def __init__(self) -> None:
        # Mutable: the watched objects, each once. A gate of synchronous code is another one in each process.
        self._gates: dict[int, Callable[[], Dedup]] = {}
        self._consumers: dict[int, Any] = {}
        self._inboxes: dict[int, Any] = {}

    def add_gate(
        self, dedup: Dedup | SyncDedup, attach: Callable[[Connections], object] = Connections.count
    ) -> None:
        """Show a gate's figures too. The gate counts from now on; `attach` is called for each process's gate.

        Raises:
            UsageError: the gate is open, and does not count.
        """
        if isinstance(dedup, SyncDedup):
            processes = dedup.per_process
            processes.on_made(lambda made: attach(made.gate.connections))
            self._gates[id(processes)] = lambda: processes.present
        else:
            attach(dedup.gate.connections)
            self._gates[id(dedup.gate.connections)] = lambda: dedup

    def add(self, watched: Any) -> None:
        """Show the counts of a consumer or an inbox too; `is_watchable` checks whether it is one."""
        if _is_inbox(watched):
            self._inboxes[id(watched.rules)] = watched.rules
        else:
            self._consumers[id(watched)] = watched

    def figures(self) -> tuple[Figure, ...]:
        """Return the figures of the watched objects."""
        groups = (self._gates, FIGURES), (self._consumers, CONSUMERS), (self._inboxes, INBOXES)
        return tuple(figure for watched, figures in groups if watched for figure in figures)

    def of(self, figure: Figure) -> Mapping[Labels, Any]:
        """Return a figure's values by those of its labels; none if no watched object has it."""
        if figure not in self.figures():
            return {}
        if figure in (*CONSUMERS, *INBOXES):
            return figure.read(self)
        every = [find().gate.connections for find in list(self._gates.values())]
        gates = [WatchedGate(each, each.count(), each.journals) for each in every]
        consumers = [name for consumer in list(self._consumers.values()) for name in counts_of(consumer)]
        return Sums(gates, consumers).of(figure)

    # Figures of consumers and inboxes: see the rows' sources

    def results(self) -> Counted:
        """Return the outcomes of deliveries, by consumer and result."""
        return Counter(
            {(name, each): count for each in _RESULTS for (name,), count in self.summed(each).items()}
        )

    def running(self) -> Counted:
        """Return how many consumers of each name run; consumers of a framework do not report it."""
        sums: Counted = Counter()
        for consumer in list(self._consumers.values()):
            if hasattr(consumer, "is_running"):
                sums[consumer.name,] += consumer.is_running
        return sums

    def received(self) -> Counted:
        """Return how many keys were received, by inbox and outcome."""
        sums: Counted = Counter()
        for rules in list(self._inboxes.values()):
            for outcome, count in list(rules.received.items()):
                sums[rules.name, str(outcome)] += count
        return sums

    def summed(self, attribute: str) -> Counted:
        """Return an attribute of the counts by consumer."""
        sums: Counted = Counter()
        for consumer in list(self._consumers.values()):
            for name, counts in counts_of(consumer).items():
                sums[name,] += getattr(counts, attribute)
        return sums


def is_watchable(watched: Any) -> bool:
    """True for a consumer or an inbox."""
    return _is_inbox(watched) or hasattr(watched, "counts")


def _is_inbox(watched: Any) -> bool:
    return hasattr(getattr(watched, "rules", None), "received")


def counts_of(consumer: Any) -> Mapping[str, Any]:
    """Return a consumer's counts by its name; a middleware of several queues has several."""
    counts = consumer.counts
    return counts if isinstance(counts, Mapping) else {consumer.name: counts}
