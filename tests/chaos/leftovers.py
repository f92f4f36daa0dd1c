"""The rules for what an outage leaves behind: held keys, burnt tokens, and conflicts that nobody reports."""

from __future__ import annotations

from collections.abc import Iterator

from .facts import Found, Key, Rule
from .history import SETTLING, TAKING, UNSURE, Event
from .ownership import writers_of

HELD = "a key held for nobody"
BURNT = "a token burnt with nobody told"
SWALLOWED = "a conflict that nobody reported"


def held_for_nobody(key: Key) -> Iterator[Found]:
    """A claim that was given up is undone within a second of the store's return; then the key is free.

    A claim under a name of the caller's own is not undone: the same name gets it back.
    """
    if key.degraded or key.facts.steps:
        return  # the policy may hold it; after a step back leases last longer than they should
    for event in key.events:
        if event.outcome != "in_progress" or event.end is None:
            continue
        suspects = [
            other
            for other in key.events
            if other is not event and other.verb in TAKING and other.outcome in UNSURE
            if other.start <= event.end
        ]
        if suspects and not _held(key, event) and all(_must_be_undone(key, it, event) for it in suspects):
            yield HELD, suspects[-1], event


def _held(key: Key, event: Event) -> bool:
    return any(
        tenure.first.start <= event.over and tenure.at_most_until + key.margin >= event.start
        for tenure in key.tenures
    )


def _must_be_undone(key: Key, given_up: Event, event: Event) -> bool:
    return not given_up.named and key.facts.undone(given_up, event.start)


def burnt_tokens(key: Key) -> Iterator[Found]:
    """Where a token is used up, somebody was told ACQUIRED; what nobody was told of is given back.

    Whoever asks again under the same owner is told so at once.
    """
    if key.degraded:
        return
    for event in key.events:
        if event.verb not in ("consume", "redeem") or event.outcome != "succeeded":
            continue
        writers = writers_of(event, key.events)
        if writers and all(_is_lost_use(key, it, event) for it in writers):
            yield BURNT, writers[-1], event


def _is_lost_use(key: Key, writer: Event, event: Event) -> bool:
    own = event.named and writer.owner == event.owner
    lost = writer.verb == "consume" and writer.outcome in UNSURE
    return lost and (own or _must_be_undone(key, writer, event))


def swallowed_conflicts(key: Key) -> Iterator[Found]:
    """Who settles in an outage what the store has as a success of another claim is told of the conflict.

    The owner's name may be the same: the fence tells the two claims apart. Where one of the two results had expired
    before they met, nobody lost anything.
    """
    successes = [it for it in key.successes if it.act is it.source and it.act.verb == "complete"]
    for event in key.events:
        settled = event.degraded and event.verb in SETTLING and event.outcome == "ok"
        if not settled or not key.facts.all_reported(event):
            continue
        began = next((it for it in key.taken if it.fence == event.fence and it.owner == event.owner), None)
        if began is None or not began.degraded or _was_reported(key, event.worker, began.start):
            continue
        for success in successes:
            act = success.act
            met = key.facts.adopted_by(event)
            stood = min(success.until, event.start + event.ttl) - key.margin > met
            if stood and not act.degraded and act.fence != event.fence and act.over < began.start:
                yield SWALLOWED, act, event
                break


def _was_reported(key: Key, worker: str, since: int) -> bool:
    times = key.facts.reported.get((worker, key.events[0].key), [])
    return any(time >= since for time in times)


RULES: tuple[Rule, ...] = (held_for_nobody, burnt_tokens, swallowed_conflicts)
