"""Holds a history against the promises: `check(history)` returns what cannot be.

The rules (`rules.py`) find conflicts: an earlier and a later event of one key that no order of
effects can reconcile. What a conflict counts as is decided once, in `_judge`:

- both answered by the store while it kept its data: a violation;
- all answered by the fallback policy of one process: its store keeps all promises alone, a violation;
- an answer of the fallback policy in it otherwise: a violation where both are of one process and two
  owners or two uses of a token came of it, else a figure for the table;
- the server may have lost its data between the two: counted as lost.

Besides, where the store is known to have been well all through, whoever is refused is a violation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from . import ledgers, leftovers, machines, rules
from .facts import Facts, Key, Overruled
from .history import FACTS, FOREVER, MS, Event, History
from .rules import FORGOTTEN_TOKEN, TOKEN_TWICE, TWO_OWNERS

MARGIN = 5 * MS
"""ns. The server's clock counts whole milliseconds, and is not exactly as fast as the monotonic one."""

RULES = (*rules.RULES, *machines.RULES, *leftovers.RULES, *ledgers.RULES)
FALSE_OUTAGE = "an outage that was none"
_NEVER_TRADED = (leftovers.SWALLOWED,)
"""Kinds that are violations although the policy answered: it must say so when the store is back."""
_WITHIN_A_PROCESS = (TWO_OWNERS, TOKEN_TWICE)
"""Kinds that must not happen within one process, whether the store answered or the policy."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two events that cannot both be. `earlier` is None where one is enough."""

    kind: str
    key: str
    earlier: Event | None
    later: Event
    behind: tuple[Event, ...] = ()
    """The acts from which these two follow: a result that is replayed was written by somebody."""

    @property
    def degraded(self) -> bool:
        """True where the policy's own answer is at the bottom of it, perhaps brought into the store since."""
        return any(event is not None and event.degraded for event in (self.earlier, self.later, *self.behind))

    @property
    def of_one_policy(self) -> bool:
        """True where all of it was answered by the policy of one process."""
        events = [event for event in (self.earlier, self.later, *self.behind) if event is not None]
        return len({event.worker for event in events}) == 1 and all(event.degraded for event in events)

    def text(self, origin: int = 0) -> str:
        """A few lines for people; times in ms since `origin`."""
        lines = [f"{self.kind}: {self.key}"]
        lines += [f"    {event.line(origin)}" for event in (self.earlier, self.later) if event is not None]
        return "\n".join(lines)


@dataclass(slots=True)
class Findings:
    """What a history shows.

    Attributes:
        violations: conflicts that break a promise.
        false_new: claims acquired although another's was live or settled, by degrading or by lost data.
        false_duplicates: claims told "duplicate" (or "unknown") although nobody held or had used the key.
        lost: conflicts across a loss of data.
        lost_confirmed: those of them whose earlier event was confirmed by replicas, as far as that was asked for.
        notes: other conflicts with degraded answers, by kind.
    """

    violations: list[Conflict] = field(default_factory=list)
    false_new: int = 0
    false_duplicates: int = 0
    lost: int = 0
    lost_confirmed: int = 0
    notes: Counter[str] = field(default_factory=Counter)


def check(history: History, *, margin: int = MARGIN) -> Findings:
    """Return what a history shows; `margin` in ns is taken off every lease and ttl."""
    facts = Facts.of(history, margin)
    by_key: dict[str, list[Event]] = defaultdict(list)
    for event in sorted(history.events, key=lambda event: event.start):
        if event.verb not in FACTS:
            by_key[event.key].append(event)
    findings = Findings()
    for name, events in by_key.items():
        key = Key.of(events, facts)
        new: set[int] = set()
        conflicts = (Conflict(kind, name, *rest) for rule in RULES for kind, *rest in rule(key))
        for conflict in _distinct(conflicts):
            _judge(conflict, history, facts.overruled, findings, new)
        findings.false_new += len(new)
        findings.false_duplicates += sum(1 for _ in _unheld(key))
    findings.violations += _false_outages(history)
    return findings


def _false_outages(history: History) -> Iterator[Conflict]:
    """While the store is well, it answers each operation, also of a program that blocks its own loop."""
    if history.slow is None:
        return
    for event in history.events:
        refused = event.outcome == "unavailable" or event.degraded
        if refused and not any(event.start <= end and event.over >= start for start, end in history.slow):
            yield Conflict(FALSE_OUTAGE, event.key, None, event)


def _distinct(conflicts: Iterator[Conflict]) -> Iterator[Conflict]:
    """One conflict of a kind for each later event and earlier owner: a claim repeated is not a mistake repeated."""
    seen = set()
    for conflict in conflicts:
        a, b = conflict.earlier, conflict.later
        mark = (conflict.kind, id(b), conflict.degraded, a and (a.worker, a.owner))
        if mark not in seen:
            seen.add(mark)
            yield conflict


def _judge(
    conflict: Conflict, history: History, overruled: Overruled, findings: Findings, new: set[int]
) -> None:
    a, b = conflict.earlier, conflict.later
    if a is None or (conflict.of_one_policy and not _overruled(conflict, overruled)):
        findings.violations.append(conflict)
    elif conflict.degraded and conflict.kind not in _NEVER_TRADED:
        # What the policy made may have come into the store, and have been lost there.
        lost = not b.degraded and _lost_between(a, b, history)
        if a.worker == b.worker and conflict.kind in _WITHIN_A_PROCESS and not lost:
            findings.violations.append(conflict)
        elif b.acquired:
            new.add(id(b))
        elif conflict.kind == FORGOTTEN_TOKEN:
            findings.false_duplicates += 1
        else:
            findings.notes[conflict.kind] += 1
    elif _lost_between(a, b, history):
        findings.lost += 1
        findings.lost_confirmed += a.confirmed
        if b.acquired:
            new.add(id(b))
    else:
        findings.violations.append(conflict)


def _overruled(conflict: Conflict, overruled: Overruled) -> bool:
    """True where the process was told in between that the earlier owner is none any more."""
    earlier = [event for event in (conflict.earlier, *conflict.behind) if event is not None]
    return any(
        overruled.get((event.worker, event.owner), FOREVER) <= conflict.later.over for event in earlier
    )


def _lost_between(a: Event, b: Event, history: History) -> bool:
    return any(a.start <= end and b.over >= start for start, end in history.losses)


def _unheld(key: Key) -> Iterator[Event]:
    """Claims told IN_PROGRESS while nobody who knew of it can have held the key."""
    for event in key.events:
        if event.outcome == "in_progress" and event.end is not None:
            held = any(
                tenure.owner != event.owner
                and tenure.first.start <= event.end
                and tenure.at_most_until >= event.start
                for tenure in key.tenures
            )
            if not held:
                yield event
