"""What the rules look at: `Facts` of a whole run, and `Key`, the events of one key with what is sure of them."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from .history import CLOSED, FOREVER, OURS_STANDS, REPORTED, SECOND, TAKING, Event, History
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
        told: by worker and gate, when (ns) it was told an answer, and the highest fence by then.
    """

    margin: int
    overruled: Overruled = field(default_factory=dict)
    reported: Reported = field(default_factory=dict)
    answers: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    steps: Sequence[tuple[int, int]] = ()
    told: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)
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
            if event.verb == OURS_STANDS:
                facts.overruled.setdefault((event.worker, event.owner), event.start)
            elif event.verb == REPORTED:
                facts.reported.setdefault((event.worker, event.key), []).append(event.start)
            elif event.verb == CLOSED:
                facts.closed.add(event.worker)
            elif event.outcome in ("acquired", "ok", "changed") and event.end and not event.degraded:
                answers[event.worker].append((event.start, event.end))
        facts.answers = answers
        if history.steps:
            facts.told = told_fences(history)
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

    def adopted_by(self, event: Event) -> int:
        """Return when (ns) the policy's answer was surely in the store, or the run over."""
        again = self.answered_again(event.worker, event.over)
        return (self.latest if again is None else again) + GRACE

    def all_reported(self, event: Event) -> bool:
        """True where a process must have reported by now what its policy's answer has come to."""
        return event.worker in self.closed or self.undone(event, self.latest)

    def could_know(self, worker: str, earlier: Event, later: Event) -> bool:
        """True where a client surely knew a time after the earlier event when it asked for the later one.

        From the first step on the server's clock may be behind: then only who was told such a fence knows.
        """
        first = self.steps[0][0] if self.steps else FOREVER
        if later.over < first or earlier.worker == worker:
            return True
        if any(earlier.over <= start and end <= first for start, end in self.answers.get(worker, [])):
            return True
        told = self.told.get((worker, gate_of(later)), [])
        place = bisect_right(told, (later.start, FOREVER))
        return place > 0 and told[place - 1][1] >= earlier.fence


def gate_of(event: Event) -> str:
    """Return which of its process's gates was asked: they are named after their policies."""
    return event.key.partition("/")[0]


def told_fences(history: History) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """Return, by worker and gate, the highest fence that was told by when (ns)."""
    told: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    answered = [event for event in history.events if event.end is not None and event.verb in TAKING]
    for event in sorted(answered, key=lambda event: event.over):
        spans = told[event.worker, gate_of(event)]
        spans.append((event.over, max(event.fence, spans[-1][1] if spans else 0)))
    return told


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
