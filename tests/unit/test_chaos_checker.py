"""The chaos checker: it finds each kind of violation, and is never wrong where brute force says "possible"."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.chaos import brute
from tests.chaos.checker import Findings, check
from tests.chaos.history import MS, Event, History
from tests.chaos.ledgers import FORGOTTEN_ID, WRONGLY_KNOWN, WRONGLY_NEW
from tests.chaos.rules import (
    ALTERED,
    ATTEMPT_FELL,
    FENCE_FELL,
    FORGOTTEN,
    FORGOTTEN_TOKEN,
    PHANTOM,
    SETTLED_TWICE,
    STALE,
    TOKEN_TWICE,
    TWO_OWNERS,
)

Planted = dict[str, tuple[str, list[Event]]]


def event(verb: str, start: int, end: int | None, outcome: str | None, **facts: object) -> Event:
    """An event with times in ms; the owner's first letter is its process."""
    owner = str(facts.pop("owner", ""))
    times = {name: int(facts.pop(name, usual)) * MS for name, usual in (("lease", 0), ("ttl", 1000))}  # type: ignore[call-overload]
    worker, key = str(facts.pop("worker", owner[:1] or "z")), str(facts.pop("key", "key"))
    stop = None if end is None else end * MS
    return Event(worker, start, verb, key, start * MS, stop, owner, outcome=outcome, **times, **facts)  # type: ignore[arg-type]


def claim(owner: str, start: int, end: int, fence: int, **facts: object) -> Event:
    return event("claim", start, end, "acquired", owner=owner, fence=fence, **{"lease": 20, **facts})


def act(verb: str, owner: str, start: int, end: int | None, fence: int, **facts: object) -> Event:
    return event(verb, start, end, str(facts.pop("outcome", "ok")), owner=owner, fence=fence, **facts)


def told(outcome: str, start: int, end: int, **facts: object) -> Event:
    return event("claim", start, end, outcome, **{"lease": 20, **facts})


def found(*events: Event, losses: tuple[tuple[int, int], ...] = ()) -> Findings:
    return check(History(list(events), [(a * MS, b * MS) for a, b in losses]), margin=0)


def kinds(findings: Findings) -> set[str]:
    return {conflict.kind for conflict in findings.violations}


def of_id(verb: str, start: int, end: int, outcome: str, **facts: object) -> Event:
    """An event of a ledger's id, whose window is 100 ms."""
    return replace(event(verb, start, end, outcome, ttl=100, **facts), key="reject/ledger/id")


PLANTED: Planted = {
    "an id that was new twice in its window": (
        WRONGLY_NEW,
        [of_id("first", 0, 2, "new", owner="a"), of_id("first", 90, 92, "new", owner="b")],
    ),
    "an id that was not found in its window": (
        FORGOTTEN_ID,
        [of_id("first", 0, 2, "new", owner="a"), of_id("seen", 90, 92, "unseen", owner="b")],
    ),
    "an id that is known after its window": (
        WRONGLY_KNOWN,
        [of_id("first", 0, 2, "new", owner="a"), of_id("first", 140, 142, "known", owner="b")],
    ),
    "an id of a call that is told a duplicate of itself": (
        WRONGLY_KNOWN,
        [
            of_id("first", 0, 2, "unavailable", owner="a", named=True),
            of_id("first", 9, 11, "known", owner="a", named=True),
        ],
    ),
    "a claim acquired inside another's lease": (
        TWO_OWNERS,
        [claim("a", 0, 2, 1, attempt=1), claim("b", 5, 9, 2, attempt=2)],
    ),
    "a claim acquired inside a renewed lease": (
        TWO_OWNERS,
        [claim("a", 0, 2, 1), act("renew", "a", 10, 11, 1, lease=20), claim("b", 24, 28, 2)],
    ),
    "a later owner with a lower fence": (
        FENCE_FELL,
        [claim("a", 0, 2, 7), act("release", "a", 3, 4, 7), claim("b", 6, 8, 5)],
    ),
    "a takeover that counts no attempt": (
        ATTEMPT_FELL,
        [claim("a", 0, 2, 1, attempt=1), act("release", "a", 3, 4, 1), claim("b", 6, 8, 2, attempt=1)],
    ),
    "a success that was forgotten": (
        FORGOTTEN,
        [claim("a", 0, 2, 1), act("complete", "a", 3, 4, 1, value="x"), claim("b", 6, 8, 2)],
    ),
    "a failure that was forgotten": (
        FORGOTTEN,
        [claim("a", 0, 2, 1), act("fail", "a", 3, 4, 1, value="x"), claim("b", 6, 8, 2)],
    ),
    "a success known only by its replay, then forgotten": (
        FORGOTTEN,
        [
            claim("a", 0, 2, 1),
            act("complete", "a", 3, 4, 1, value="x", outcome="unavailable"),
            told("succeeded", 6, 7, owner="c", result="x"),
            claim("b", 8, 9, 2),
        ],
    ),
    "a token consumed twice": (
        TOKEN_TWICE,
        [
            event("issue", 0, 1, "ok", owner="i"),
            event("consume", 2, 6, "acquired", owner="a"),
            event("consume", 3, 5, "acquired", owner="b"),
        ],
    ),
    "a token that was forgotten": (
        FORGOTTEN_TOKEN,
        [event("issue", 0, 1, "ok", owner="i"), event("redeem", 2, 6, "unknown", owner="a")],
    ),
    "a replay of another result": (
        ALTERED,
        [
            claim("a", 0, 2, 1),
            act("complete", "a", 3, 4, 1, value="x"),
            told("succeeded", 6, 7, owner="c", result="y"),
        ],
    ),
    "a result whose owner was told that it is lost": (
        ALTERED,
        [
            claim("a", 0, 2, 1),
            act("complete", "a", 3, 4, 1, value="x", outcome="lost"),
            told("succeeded", 6, 7, owner="c", result="x"),
        ],
    ),
    "a success that nobody wrote": (ALTERED, [told("succeeded", 6, 7, owner="c", result="y")]),
    "a duplicate of nothing": (PHANTOM, [told("in_progress", 6, 7, owner="c")]),
    "an overtaken owner settles": (
        STALE,
        [claim("a", 0, 2, 1), claim("b", 30, 32, 2), act("complete", "a", 33, 34, 1, value="x")],
    ),
    "an overtaken owner releases": (
        STALE,
        [claim("a", 0, 2, 1), claim("b", 30, 32, 2), act("release", "a", 33, 34, 1)],
    ),
    "two settle one key": (
        SETTLED_TWICE,
        [
            claim("a", 0, 2, 1),
            claim("b", 15, 32, 2),
            act("complete", "a", 16, 40, 1, value="x"),
            act("complete", "b", 33, 34, 2, value="y"),
        ],
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found_by_intervals_and_by_brute_force(name: str) -> None:
    kind, events = PLANTED[name]
    assert kind in kinds(found(*events))
    assert not brute.linearisable(events)


POSSIBLE = {
    "overlapping claims": [claim("a", 0, 30, 3), claim("b", 5, 9, 2)],
    "the same owner again": [claim("a", 0, 2, 1), claim("a", 5, 9, 1)],
    "a takeover after the lease": [claim("a", 0, 2, 1, attempt=1), claim("b", 21, 23, 2, attempt=2)],
    "a release that was never answered": [
        claim("a", 0, 2, 1),
        act("release", "a", 3, None, 1, outcome="unavailable"),
        claim("b", 5, 6, 2),
    ],
    "a result after its ttl": [
        claim("a", 0, 2, 1),
        act("complete", "a", 3, 4, 1, value="x", ttl=10),
        claim("b", 14, 15, 2),
    ],
    "somebody's lost claim in the way": [
        event("claim", 0, None, "unavailable", lease=20),
        told("in_progress", 3, 4, owner="b"),
    ],
    "a lease that ran out unnoticed": [
        claim("a", 0, 2, 1),
        act("renew", "a", 30, 31, 1, lease=20),
        act("complete", "a", 60, 61, 1, value="x"),
        told("succeeded", 62, 63, owner="c", result="x"),
    ],
}


@pytest.mark.parametrize("name", POSSIBLE)
def test_what_is_possible_is_no_violation(name: str) -> None:
    assert brute.linearisable(POSSIBLE[name])
    assert not found(*POSSIBLE[name]).violations


def simulate(draw: random.Random, size: int) -> list[Event]:
    """A random history that some order explains: the model answers, each at a moment within its interval."""
    events, state, now, fence = [], brute.State(), 0, 0
    free = {"a": 0, "b": 0, "c": 0}
    holds: dict[str, Event] = {}
    token = draw.random() < 0.3
    if token:
        first = event("issue", 0, 0, None, owner="i", ttl=draw.choice((12, 1000)))
        state = brute.act(state, first, 0)[1]
        events.append(replace(first, outcome="ok"))
    while len(events) < size:
        now += draw.randint(0, 4)
        client = draw.choice([name for name in free if free[name] <= now] or [""])
        if not client:
            continue
        asked = question(draw, client, holds, draw.randint(free[client], now), token)
        reply, after = brute.act(state, asked, now)
        asked.end = (now + draw.randint(0, 4)) * MS
        free[client] = asked.end // MS + 1
        if draw.random() < 0.15:  # the answer is lost, and perhaps the question
            asked.outcome, known = "unavailable", asked.owner
            if asked.verb in ("claim", "redeem", "consume"):
                asked.owner = ""
            state = brute.act(state, asked, now)[1] if draw.random() < 0.5 else state
            holds.pop(known, None)
            events.append(asked)
            continue
        asked.outcome = reply.code.lower()
        if asked.outcome == "acquired" and asked.verb != "consume":
            if reply.fresh:
                fence += draw.randint(1, 3)
                after = after.told(fence)
            asked.fence, asked.attempt = after.record.fence, reply.attempt  # type: ignore[union-attr]
            holds[client] = asked
        elif asked.outcome in ("succeeded", "failed"):
            asked.result = reply.result or None
        if asked.verb in ("complete", "fail", "release"):
            holds.pop(client)
        state = after
        events.append(asked)
    return events


def question(draw: random.Random, client: str, holds: dict[str, Event], start: int, token: bool) -> Event:
    held = holds.get(client)
    if held is not None and draw.random() < 0.8:
        verb = draw.choice(("complete", "fail", "release", "renew"))
        value = f"{client}{start}" if verb in ("complete", "fail") else None
        lease = draw.choice((5, 12)) if verb == "renew" else 0
        ttl = draw.choice((6, 1000))
        return act(verb, client, start, None, held.fence, value=value, lease=lease, ttl=ttl)
    verb = draw.choice(("redeem", "consume")) if token else "claim"
    owner = client if verb == "claim" else f"{client}{start}"
    return event(verb, start, None, None, owner=owner, lease=draw.choice((4, 10)), ttl=draw.choice((6, 1000)))


@pytest.mark.parametrize("chunk", range(8))
def test_a_history_that_some_order_explains_has_no_violation(chunk: int) -> None:
    for seed in range(50 * chunk, 50 * chunk + 50):
        draw = random.Random(seed)
        events = simulate(draw, draw.randint(3, 12))
        conflicts = found(*events).violations
        assert not conflicts, (seed, "\n".join(conflict.text() for conflict in conflicts))
        if len(events) <= 7:
            assert brute.linearisable(events), seed


def spoil(draw: random.Random, events: list[Event]) -> list[Event]:
    """Change one answer at random."""
    spoiled = [replace(event) for event in events]
    victim = draw.choice(spoiled)
    what = draw.choice(("outcome", "fence", "result", "shift", "attempt"))
    if what == "outcome":
        taking = ("acquired", "in_progress", "succeeded")
        victim.outcome = draw.choice(
            taking if victim.verb in ("claim", "redeem", "consume") else ("ok", "lost")
        )
        victim.fence = victim.fence or draw.randint(1, 12)
    elif what == "shift":
        by = draw.randint(1, 15) * MS
        victim.start, victim.end = victim.start + by, (victim.end or victim.start) + by
    elif what == "result":
        victim.result = "other"
    else:
        setattr(victim, what, draw.randint(1, 10))
    return sorted(spoiled, key=lambda event: event.start)


def test_what_intervals_report_brute_force_reports_too() -> None:
    both = only_brute = 0
    for seed in range(500):
        draw = random.Random(seed)
        events = spoil(draw, simulate(draw, draw.randint(2, 6)))
        violations = found(*events).violations
        explained = brute.linearisable(events)
        assert not (violations and explained), (seed, "\n".join(item.text() for item in violations))
        both += bool(violations)
        only_brute += not violations and not explained
    assert both > 50, (both, only_brute)  # it is not blind either


def test_degraded_answers_are_unique_within_a_process_only() -> None:
    ours, theirs = claim("a", 0, 2, 1, degraded=True), claim("b", 5, 9, 2)
    across = found(ours, theirs)
    assert not across.violations
    assert across.false_new == 1
    assert kinds(found(ours, claim("b", 5, 9, 2, worker="a"))) == {TWO_OWNERS}


def test_a_conflict_across_a_loss_of_data_is_counted_and_no_violation() -> None:
    events = PLANTED["a success that was forgotten"][1]
    across = found(*events, losses=((4, 6),))
    assert (across.violations, across.lost, across.false_new) == ([], 1, 1)
    assert found(*events, losses=((40, 60),)).violations


def test_being_told_duplicate_while_nobody_holds_the_key_is_counted() -> None:
    lost = event("claim", 0, 1, "unavailable", lease=20)
    findings = found(lost, told("in_progress", 3, 4, owner="b"))
    assert (findings.violations, findings.false_duplicates) == ([], 1)
    assert found(claim("a", 0, 2, 1), told("in_progress", 3, 4, owner="b")).false_duplicates == 0


def test_ids_that_are_told_right_have_no_violation() -> None:
    """New a window apart, after a removal, and for the same call; known of another's call, also of a lost one."""
    new, known = of_id("first", 0, 2, "new", owner="a"), of_id("first", 4, 6, "known", owner="b")
    again = of_id("first", 8, 9, "new", owner="a")
    gone, anew = of_id("forget", 10, 12, "gone"), of_id("first", 13, 14, "new", owner="c")
    later = of_id("first", 116, 117, "new", owner="d")
    assert not found(new, known, again, gone, anew, later).violations
    assert not found(new, again, of_id("first", 104, 105, "new", owner="b")).violations
    lost = of_id("first", 0, 2, "unavailable", owner="a")
    assert not found(lost, known).violations
