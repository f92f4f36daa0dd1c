"""The counts of consumers and inboxes that a program watches: Prometheus and OpenTelemetry show the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

_RESULTS: Final = ("first", "duplicate", "retried", "dead_lettered")
"""What comes of a delivery: attributes of `fastdedup.messages.Counts`."""
Counted = Counter[tuple[str, ...]]


class MessageFigure(NamedTuple):
    """A figure of consumers or inboxes, by labels.

    Attributes:
        name: of words with `_` between, as Prometheus has it.
        unit: what is counted.
        text: says what it is.
        labels: the names of the labels.
        present: returns the counts of this moment, by the labels' values.
        is_watched: True where what it counts is watched.
        is_gauge: its values fall, too.
    """

    name: str
    unit: str
    text: str
    labels: list[str]
    present: Callable[[], Counted]
    is_watched: bool
    is_gauge: bool = False


class WatchedMessages:
    """Consumers and inboxes whose counts are shown, added up by their names."""

    def __init__(self) -> None:
        # Mutable: what is watched, each once.
        self._consumers: dict[int, Any] = {}
        self._inboxes: dict[int, Any] = {}

    def add(self, watched: Any) -> None:
        """Show the counts of a consumer or an inbox as well; `is_watchable` says whether it is one."""
        if _is_inbox(watched):
            self._inboxes[id(watched.rules)] = watched.rules
        else:
            self._consumers[id(watched)] = watched

    def names(self) -> set[str]:
        """Return the names of the consumers."""
        return {name for consumer in list(self._consumers.values()) for name in counts_of(consumer)}

    def figures(self) -> Iterator[MessageFigure]:
        """Yield each figure; one of which nothing is watched has no values."""
        consumers, inboxes = bool(self._consumers), bool(self._inboxes)
        text = "Deliveries by what came of them."
        yield MessageFigure("messages", "message", text, ["consumer", "result"], self._results, consumers)
        text = "Messages that the broker delivered."
        yield MessageFigure("messages_delivered", "message", text, ["consumer"], self._delivered, consumers)
        text = "Messages that waited unacknowledged."
        yield MessageFigure("messages_held", "message", text, ["consumer"], self._held, consumers)
        text, running = "Consumers whose run is at work.", self._running
        yield MessageFigure("consumer_running", "consumer", text, ["consumer"], running, consumers, True)
        text = "Keys that an inbox received, by their outcome."
        yield MessageFigure("inbox_received", "key", text, ["inbox", "outcome"], self._received, inboxes)

    def _results(self) -> Counted:
        return Counter(
            {(name, each): count for each in _RESULTS for (name,), count in self._summed(each).items()}
        )

    def _delivered(self) -> Counted:
        return self._summed("delivered")

    def _held(self) -> Counted:
        return self._summed("held")

    def _running(self) -> Counted:
        """Return how many consumers of each name run; what a framework runs does not tell."""
        sums: Counted = Counter()
        for consumer in list(self._consumers.values()):
            if hasattr(consumer, "is_running"):
                sums[consumer.name,] += consumer.is_running
        return sums

    def _received(self) -> Counted:
        sums: Counted = Counter()
        for rules in list(self._inboxes.values()):
            for outcome, count in list(rules.received.items()):
                sums[rules.name, str(outcome)] += count
        return sums

    def _summed(self, attribute: str) -> Counted:
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
