"""The watched objects of a program: gates, consumers and inboxes. Prometheus and OpenTelemetry show the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from ...core.sums import WatchedGate
from ...declarations import Figure, Labels
from ...gateway import Dedup

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


def watched_gate(dedup: Dedup) -> WatchedGate:
    """Return the present source of a gate's figures. The gate counts from now on.

    Raises:
        UsageError: the gate is open, and does not count.
    """
    connections = dedup.gate.connections
    return WatchedGate(connections, connections.count(), connections.journals)


class WatchedMessages:
    """Consumers and inboxes whose counts are shown, added up by their names."""

    def __init__(self) -> None:
        # Mutable: the watched objects, each once.
        self._consumers: dict[int, Any] = {}
        self._inboxes: dict[int, Any] = {}

    def add(self, watched: Any) -> None:
        """Show the counts of a consumer or an inbox too; `is_watchable` checks whether it is one."""
        if _is_inbox(watched):
            self._inboxes[id(watched.rules)] = watched.rules
        else:
            self._consumers[id(watched)] = watched

    def names(self) -> set[str]:
        """Return the names of the consumers."""
        return {name for consumer in list(self._consumers.values()) for name in counts_of(consumer)}

    def figures(self) -> tuple[Figure, ...]:
        """Return the figures of the watched objects; `source` reads their values here."""
        return (*(CONSUMERS if self._consumers else ()), *(INBOXES if self._inboxes else ()))

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
