"""The counts of consumers and inboxes that a program watches: Prometheus and OpenTelemetry show the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

_RESULTS: Final = ("first", "duplicate", "retried", "dead_lettered")
"""What comes of a delivery: attributes of `fastdedup.messages.Counts`."""
Counted = Counter[tuple[str, ...]]


class MessageFigure(NamedTuple):
    """A count of consumers or inboxes, by labels.

    Attributes:
        name: of words with `_` between, as Prometheus has it.
        unit: what is counted.
        text: says what it is.
        labels: the names of the labels.
        present: returns the counts of this moment, by the labels' values.
    """

    name: str
    unit: str
    text: str
    labels: list[str]
    present: Callable[[], Counted]


class WatchedMessages:
    """Consumers and inboxes whose counts are shown, added up by their names."""

    def __init__(self) -> None:
        # Mutable: what is watched.
        self._consumers: list[Callable[[], Mapping[str, Any]]] = []
        self._inboxes: list[Any] = []

    def add(self, watched: Any) -> bool:
        """Show the counts of a consumer or an inbox as well; False where it is neither."""
        if hasattr(getattr(watched, "_rules", None), "received"):
            self._inboxes.append(watched._rules)
        elif hasattr(watched, "counts"):
            self._consumers.append(lambda: counts_of(watched))
        else:
            return False
        return True

    def names(self) -> set[str]:
        """Return the names of the consumers."""
        return {name for find in self._consumers for name in find()}

    def figures(self) -> Iterator[MessageFigure]:
        """Yield each figure of what is watched."""
        if self._consumers:
            text = "Deliveries by what came of them."
            yield MessageFigure("messages", "message", text, ["consumer", "result"], self._results)
            text = "Messages that the broker delivered."
            yield MessageFigure("messages_delivered", "message", text, ["consumer"], self._delivered)
            text = "Messages that waited unacknowledged."
            yield MessageFigure("messages_held", "message", text, ["consumer"], self._held)
        if self._inboxes:
            text = "Keys that an inbox received, by their outcome."
            yield MessageFigure("inbox_received", "key", text, ["inbox", "outcome"], self._received)

    def _results(self) -> Counted:
        return Counter(
            {(name, each): count for each in _RESULTS for (name,), count in self._summed(each).items()}
        )

    def _delivered(self) -> Counted:
        return self._summed("delivered")

    def _held(self) -> Counted:
        return self._summed("held")

    def _received(self) -> Counted:
        sums: Counted = Counter()
        for rules in self._inboxes:
            for outcome, count in list(rules.received.items()):
                sums[rules.name, str(outcome)] += count
        return sums

    def _summed(self, attribute: str) -> Counted:
        sums: Counted = Counter()
        for find in self._consumers:
            for name, counts in find().items():
                sums[name,] += getattr(counts, attribute)
        return sums


def counts_of(consumer: Any) -> Mapping[str, Any]:
    """Return a consumer's counts by its name; a middleware of several queues has several."""
    counts = consumer.counts
    return counts if isinstance(counts, Mapping) else {consumer._name: counts}
