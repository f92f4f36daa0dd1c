"""The rules for ids of a ledger: new once in a window, known while it lasts, and new again after it."""

from __future__ import annotations

from collections.abc import Iterator

from .facts import Found, Key, Rule
from .history import FOREVER, MS, UNSURE, Event

WRONGLY_NEW = "an id that was new twice in a window"
FORGOTTEN_ID = "an id that was forgotten"
WRONGLY_KNOWN = "an id that is a duplicate of nothing"
FIRST, SEEN, FORGET = "first", "seen", "forget"
LATER = 0.01
"""An id is remembered for so much of its window longer."""
SLACK = 30 * MS
"""ns that a server may take to remember an id less soon than it was asked to, and a client to hear of it."""


def ids_of(key: Key) -> list[Event]:
    """Return the events of an id; of any other key nothing. Nothing is sure of what a policy or an old clock said."""
    if key.degraded or key.facts.steps or "/ledger/" not in key.events[0].key:
        return []
    return key.events


def new_twice(key: Key) -> Iterator[Found]:
    """Two calls are told that they are the first only a window apart, or with a removal between them."""
    events = ids_of(key)
    firsts = [event for event in events if event.verb == FIRST and event.outcome == "new"]
    for n, a in enumerate(firsts):
        for b in firsts[n + 1 :]:
            since = min(_asked_first(events, a), _asked_first(events, b))
            if _same_call(a, b) or max(a.over, b.over) - since >= a.ttl - key.margin:
                continue
            if not _removed_between(events, a, b):
                yield (WRONGLY_NEW, a, b) if a.over <= b.over else (WRONGLY_NEW, b, a)


def forgotten_ids(key: Key) -> Iterator[Found]:
    """Who looks within the window of an id that was new finds it."""
    events = ids_of(key)
    for a in events:
        if a.verb != FIRST or a.outcome != "new":
            continue
        for b in events:
            looked = b.outcome in ("unseen", "absent") and b.start > a.over
            since = _asked_first(events, a)
            if looked and b.over - since < a.ttl - key.margin and not _removed_between(events, a, b):
                yield FORGOTTEN_ID, a, b


def known_for_nothing(key: Key) -> Iterator[Found]:
    """Who is told "duplicate" is told of a call of another's, within its window and not yet taken back."""
    events = ids_of(key)
    for event in events:
        if event.outcome in ("known", "gone") and not any(_explains(key, it, event) for it in events):
            yield WRONGLY_KNOWN, None, event


def _explains(key: Key, other: Event, event: Event) -> bool:
    """True where the id that `event` was told of may be what `other` remembered."""
    if other.verb != FIRST or other.start > event.over or _same_call(other, event):
        return False
    if other.outcome in UNSURE:
        return other.named or not key.facts.undone(other, event.start)
    longest = other.ttl + round(other.ttl * LATER) + SLACK + key.margin
    return other.outcome == "new" and event.start - other.over <= longest


def _same_call(a: Event, b: Event) -> bool:
    return a is b or (bool(a.owner) and a.owner == b.owner and a.verb == b.verb)


def _asked_first(events: list[Event], event: Event) -> int:
    """Return when a call was first asked for: an id of which it is told again that it is new may be so since then."""
    return min(it.start for it in events if _same_call(it, event))


def _removed_between(events: list[Event], a: Event, b: Event) -> bool:
    since, until = min(a.start, b.start), max(a.over, b.over)
    return any(
        event.verb == FORGET
        and (event.outcome == "gone" or event.outcome in UNSURE)
        and event.start <= until
        and (FOREVER if event.outcome in UNSURE else event.over) >= since
        for event in events
    )


RULES: tuple[Rule, ...] = (new_twice, forgotten_ids, known_for_nothing)
