"""The rules for state machines that can go back: one call moves once, and each version is one call's.

The workload's machines go round in circles (`steps.CIRCLES`), so the version alone tells the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .facts import Found, Key, Rule
from .history import FOREVER, UNSURE, Event
from .steps import state_at

MOVE = "move"
"""The verb of a transition. `value` is the wanted state, `result` the state told, `fence` the version told."""
MOVED_TWICE = "one call moved twice"
VERSION_TWICE = "a version told twice"
VERSION_FELL = "a version that fell"
WRONG_STATE = "a state that does not fit its version"


def moves_of(key: Key) -> list[Event]:
    """Return the answered calls of a machine that only the store answered; of any other key nothing."""
    if key.degraded:
        return []
    return [event for event in key.events if event.verb == MOVE and event.outcome not in UNSURE]


def versions_told_twice(key: Key) -> Iterator[Found]:
    """Two calls are never told CHANGED for one version, by the store or by the policy of one process."""
    told: dict[tuple[str, int], Event] = {}
    for event in key.events:
        if event.verb != MOVE or event.outcome != "changed":
            continue
        if key.degraded and not event.degraded:
            continue  # what the policy made of it and the store is a Conflict event
        who = event.worker if event.degraded else ""
        first = told.setdefault((who, event.fence), event)
        if first is not event and not _reported_between(key, first, event):
            yield VERSION_TWICE, first, event


def _reported_between(key: Key, a: Event, b: Event) -> bool:
    times = key.facts.reported.get((a.worker, a.key), [])
    return any(a.start <= time <= b.over for time in times)


def falling_versions(key: Key) -> Iterator[Found]:
    """Whoever asks later is not told a lower version."""
    moves = moves_of(key)
    highest: Event | None = None
    by_end = sorted(moves, key=lambda event: event.over)
    done = 0
    for event in moves:  # in the order in which they were asked
        while done < len(by_end) and by_end[done].over < event.start:
            if highest is None or by_end[done].fence > highest.fence:
                highest = by_end[done]
            done += 1
        if highest is not None and event.fence < highest.fence:
            yield VERSION_FELL, highest, event


def wrong_states(key: Key) -> Iterator[Found]:
    """The state that is told is the one that this many moves lead to."""
    for event in moves_of(key):
        if event.result != state_at(event.key, event.fence):
            yield WRONG_STATE, None, event


def moved_twice(key: Key) -> Iterator[Found]:
    """Each version that was reached is one call's: of a call told CHANGED, or of one whose reply was lost."""
    moves = moves_of(key)
    told = {event.fence for event in moves if event.outcome == "changed"}
    unsure = [event for event in key.events if event.verb == MOVE and event.outcome in UNSURE]
    by_state: dict[str, int] = {}
    for version in range(1, max((event.fence for event in moves), default=0) + 1):
        if version in told:
            continue
        state = state_at(key.events[0].key, version)
        by_state[state] = by_state.get(state, 0) + 1
        witness = _first_to_see(moves, version)
        explained = sum(event.value == state and event.start <= witness.over for event in unsure)
        if by_state[state] > explained:
            yield MOVED_TWICE, key.events[0], witness
            return  # what follows from it is no second finding


def _first_to_see(moves: Sequence[Event], version: int) -> Event:
    seen = [event for event in moves if event.fence >= version]
    return min(seen, key=lambda event: event.end or FOREVER)


RULES: tuple[Rule, ...] = (versions_told_twice, falling_versions, wrong_states, moved_twice)
