"""What the rules look at: `Facts` of a whole run, and `Key`, the events of one key with what is sure of them."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from .history import CLOSED, OVERRULED, REPORTED, SECOND, TAKING, Event, History
from .ownership import Success, Tenure, successes, tenures

GRACE = SECOND
"""ns. This long after the store answered a process again, what that process had given up is undone."""
_NEXT = 20
"""How many later answers are looked at for the one that ended first."""

Overruled = dict[tuple[str, str], int]
"""When (ns) a process was told that an owner of its own lost a key: by (worker, owner)."""
Reported = dict[tuple[str, str], list[int]]
"""When (ns) a process reported how the outage ended for a key, by (worker, key)."""


@dataclass(slots=True)
class Facts:
    """What is sure of a whole run.

    Attributes:
        answers: by worker, the spans (ns, ns) of operations that the store itself answered, oldest first.
        steps: the spans (ns, ns) in which the server's clock was set back.
    """

    margin: int
    overruled: Overruled = field(default_factory=dict)
    reported: Reported = field(default_factory=dict)
    answers: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    steps: Sequence[tuple[int, int]] = ()
    closed: set[str] = field(default_factory=set)
    """Workers that have reported all that they had to report."""
    latest: int = 0
    """When (ns) the last operation was asked."""

    @classmethod
    def of(cls, history: History, margin: int) -> Facts:
        """Gather the facts of a history."""
        facts = cls(margin, steps=history.steps)
        answers: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for event in sorted(history.events, key=lambda event: event.start):
            facts.latest = event.start
            if event.verb == OVERRULED:
                facts.overruled.setdefault((event.worker, event.owner), event.start)
            elif event.verb == REPORTED:
                facts.reported.setdefault((event.worker, event.key), []).append(event.start)
            elif event.verb == CLOSED:
                facts.closed.add(event.worker)
            elif event.outcome in ("acquired", "ok", "changed") and event.end and not event.degraded:
                answers[event.worker].append((event.start, event.end))
        facts.answers = answers
        return facts

    def answered_again(self, worker: str, moment: int) -> int | None:
        """Return when (ns) the store had answered something that this worker asked after `moment`."""
        spans = self.answers.get(worker, [])
        first = bisect_right(spans, (moment, 0))
        return min((end for _, end in spans[first : first + _NEXT]), default=None)

    def undone(self, given_up: Event, moment: int) -> bool:
        """True where what was given up must be undone by `moment`, and what the policy answered adopted."""
        if given_up.end is None:
            return False  # its process is dead
        again = self.answered_again(given_up.worker, given_up.end)
        return again is not None and again + GRACE < moment

    def all_reported(self, event: Event) -> bool:
        """True where a process must have reported by now what its policy's answer has come to."""
        return event.worker in self.closed or self.undone(event, self.latest)

    def could_know(self, worker: str, earlier: Event, later: Event) -> bool:
        """True where a process surely saw, before the server's clock fell, a time after the earlier event."""
        step = next((span for span in self.steps if span[1] >= earlier.start), None)
        if step is None or step[0] > later.over or earlier.worker == worker:
            return True
        spans = self.answers.get(worker, [])
        return any(earlier.over <= start and end <= step[0] for start, end in spans)


@dataclass(slots=True)
class Key:
    """The events of one key, and what is sure of them."""

    events: list[Event]
    facts: Facts
    tenures: list[Tenure]
    successes: list[Success]
    taken: list[Event]
    """The claims that acquired it, by when they were asked."""

    @property
    def margin(self) -> int:
        return self.facts.margin

    @property
    def is_token(self) -> bool:
        return any(event.verb in ("issue", "consume", "redeem") for event in self.events)

    @property
    def degraded(self) -> bool:
        """True where the policy answered for this key at all."""
        return any(event.degraded for event in self.events)

    @classmethod
    def of(cls, events: list[Event], facts: Facts) -> Key:
        taken = [event for event in events if event.acquired and event.verb in TAKING]
        return cls(events, facts, tenures(events, facts.overruled), successes(events), taken)


Found = tuple[str, Event | None, Event] | tuple[str, Event | None, Event, tuple[Event, ...]]
"""A conflict without its key: kind, earlier, later, and the acts behind them."""
Rule = Callable[[Key], Iterator[Found]]
