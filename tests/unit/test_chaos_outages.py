"""The chaos checker on histories of outages: late replies, lost ones, twins, a clock set back."""

from __future__ import annotations

import pytest

from tests.chaos.checker import FALSE_OUTAGE, Findings, check
from tests.chaos.history import CLOSED, MS, REPORTED, Event, History
from tests.chaos.leftovers import BURNT, HELD, SWALLOWED
from tests.chaos.machines import MOVED_TWICE, VERSION_FELL, VERSION_TWICE, WRONG_STATE
from tests.chaos.rules import FENCE_FELL

from . import test_chaos_checker

LAMP = "reject/machine/lamp/m0"
"""Version 0 is off, 1 is on, 2 is off."""


def event(verb: str, start: int, end: int | None, outcome: str | None, **facts: object) -> Event:
    """An event with times in ms, of worker "a" unless said otherwise."""
    usual = {"worker": "a", "key": "local/claim/k", "ttl": 9000}
    return test_chaos_checker.event(verb, start, end, outcome, **{**usual, **facts})


def claim(start: int, end: int, outcome: str = "acquired", **facts: object) -> Event:
    return event("claim", start, end, outcome, **{"lease": 9000, **facts})


def move(to: str, start: int, end: int | None, outcome: str, version: int = 0, **facts: object) -> Event:
    result = facts.pop("result", ("off", "on")[version % 2])
    told = {} if outcome in ("unavailable", "cancelled") else {"fence": version, "result": result}
    return event("move", start, end, outcome, key=LAMP, value=to, **told, **facts)


def found(*events: Event, **facts: list[tuple[int, int]]) -> Findings:
    spans = {name: [(a * MS, b * MS) for a, b in some] for name, some in facts.items()}
    return check(History(list(events), **spans), margin=0)  # type: ignore[arg-type]


def kinds(*events: Event, **facts: list[tuple[int, int]]) -> set[str]:
    return {conflict.kind for conflict in found(*events, **facts).violations}


BACK = event("claim", 20, 21, "acquired", key="local/claim/another", lease=1)
"""The store answers worker "a" again."""
LOST = claim(0, 10, "unavailable")
IN_THE_WAY = claim(1500, 1501, "in_progress", worker="b")
ISSUED = event("issue", 0, 1, "ok", key="reject/token/t")
LOST_USE = event("consume", 2, 10, "unavailable", key="reject/token/t", owner="x")
USED_UP = event("consume", 1500, 1501, "succeeded", key="reject/token/t", owner="y", worker="b")
DONE = event("complete", 3, 4, "ok", owner="job", fence=5, value="x")
TWIN = [
    claim(0, 1, owner="job", fence=5, named=True),
    DONE,
    claim(10, 11, owner="job", fence=9, named=True, degraded=True, worker="b"),
    event("complete", 12, 13, "ok", owner="job", fence=9, value="x", degraded=True, worker="b"),
]
CLOSED_B = event(CLOSED, 60, 60, None, worker="b")
TOLD = event(REPORTED, 50, 50, None, worker="b", note="Conflict")

PLANTED: dict[str, tuple[str, list[Event]]] = {
    "a claim that timed out still holds its key": (HELD, [LOST, BACK, IN_THE_WAY]),
    "a cancelled claim still holds its key": (HELD, [claim(0, 10, "cancelled"), BACK, IN_THE_WAY]),
    "a token is used up and nobody was told": (BURNT, [ISSUED, LOST_USE, BACK, USED_UP]),
    "the owner of a lost use is told that another used it": (
        BURNT,
        [
            ISSUED,
            LOST_USE,
            event("consume", 30, 31, "succeeded", key="reject/token/t", owner="x", named=True),
        ],
    ),
    "twins settle on both sides of an outage": (SWALLOWED, [*TWIN, CLOSED_B]),
    "a call moves, is moved back, and moves again": (
        MOVED_TWICE,
        [move("off", 3, 4, "changed", 2, worker="b"), move("on", 0, 9, "changed", 3)],
    ),
    "a lost call explains one move, not two": (
        MOVED_TWICE,
        [move("on", 0, 9, "unavailable"), move("off", 3, 4, "changed", 2), move("off", 5, 6, "changed", 4)],
    ),
    "two calls are told of the same move": (
        VERSION_TWICE,
        [move("on", 0, 9, "changed", 1), move("on", 3, 4, "changed", 1, worker="b")],
    ),
    "a policy tells two callers of the same move": (
        VERSION_TWICE,
        [move("on", 0, 9, "changed", 1, degraded=True), move("on", 3, 4, "changed", 1, degraded=True)],
    ),
    "a machine forgets a move": (
        VERSION_FELL,
        [move("on", 0, 1, "changed", 1), move("off", 3, 4, "already", 0)],
    ),
    "a machine is told in a state it cannot be in": (
        WRONG_STATE,
        [move("on", 0, 1, "changed", 1, result="off")],
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_of_an_outage_is_found(name: str) -> None:
    kind, events = PLANTED[name]
    assert kind in kinds(*events)


POSSIBLE: dict[str, list[Event]] = {
    "less than a second after the store's return": [LOST, BACK, claim(900, 901, "in_progress", worker="b")],
    "a store that has not answered that process yet": [LOST, IN_THE_WAY],
    "a process that died": [claim(0, 10, "unavailable"), event("claim", 11, None, None), BACK, IN_THE_WAY],
    "a name of the caller's own": [claim(0, 10, "unavailable", owner="job", named=True), BACK, IN_THE_WAY],
    "another owner in the way": [LOST, BACK, claim(25, 26, owner="c", fence=3, worker="c"), IN_THE_WAY],
    "a token whose use was asked again": [
        ISSUED,
        LOST_USE,
        event("consume", 30, 31, "acquired", key="reject/token/t", owner="x", named=True),
        USED_UP,
    ],
    "twins of whom the conflict was told": [*TWIN, TOLD, CLOSED_B],
    "twins of whom one died": TWIN,
    "twins of whom one only repeats what it did": [
        claim(0, 1, owner="job", fence=5, named=True),
        DONE,
        event("complete", 12, 13, "ok", owner="job", fence=5, value="x", degraded=True, worker="b"),
    ],
    "a lost call that moved": [move("on", 0, 9, "unavailable"), move("off", 3, 4, "changed", 2)],
    "a version told by policies of two processes": [
        move("on", 0, 1, "changed", 1, degraded=True),
        move("on", 3, 4, "changed", 1, degraded=True, worker="b"),
    ],
    "a release asked again after a lost reply": [
        claim(0, 2, owner="a", fence=1),
        event("release", 3, 9, "unavailable", owner="a", fence=1),
        claim(10, 11, owner="b", fence=2, worker="b"),
        event("release", 12, 13, "ok", owner="a", fence=1),
    ],
}


@pytest.mark.parametrize("name", POSSIBLE)
def test_what_an_outage_explains_is_no_violation(name: str) -> None:
    assert not kinds(*POSSIBLE[name])


def test_whoever_is_refused_by_a_healthy_store_is_a_violation() -> None:
    refused = claim(100, 250, "unavailable")
    assert kinds(refused, slow=[]) == {FALSE_OUTAGE}
    assert kinds(claim(100, 250, degraded=True, owner="a"), slow=[(300, 400)]) == {FALSE_OUTAGE}
    assert not kinds(refused, slow=[(240, 260)])  # the machine itself stood still
    assert not kinds(refused)


def test_a_fence_may_not_fall_where_the_process_had_seen_more() -> None:
    first = claim(0, 1, owner="x", fence=9, lease=1, ttl=1)
    later = claim(50, 51, owner="y", fence=5, worker="b")
    seen = event("claim", 5, 6, "acquired", key="local/claim/another", worker="b")
    assert kinds(first, later) == {FENCE_FELL}
    assert kinds(first, seen, later, steps=[(10, 11)]) == {FENCE_FELL}
    assert kinds(first, claim(50, 51, owner="y", fence=5), steps=[(10, 11)]) == {FENCE_FELL}


def test_a_process_that_saw_nothing_later_cannot_know_that_the_clock_fell() -> None:
    first = claim(0, 1, owner="x", fence=9, lease=1, ttl=1)
    after = event("claim", 15, 16, "acquired", key="local/claim/another", worker="b")
    assert not kinds(first, after, claim(50, 51, owner="y", fence=5, worker="b"), steps=[(10, 11)])


def test_while_the_clock_is_behind_only_a_told_fence_is_known() -> None:
    """After the step each client's fences go on from the latest time that it has seen."""
    step = [(10, 11)]
    first = claim(20, 21, owner="x", fence=9, lease=1, ttl=1)
    later = claim(50, 51, owner="y", fence=8, worker="b")
    told = claim(25, 26, owner="z", fence=9, worker="b", key="local/claim/another")
    assert not kinds(first, later, steps=step)
    assert kinds(first, told, later, steps=step) == {FENCE_FELL}


def test_a_result_that_expired_before_the_store_was_back_is_no_conflict() -> None:
    short = [event("complete", 3, 4, "ok", owner="job", fence=5, value="x", ttl=20), *TWIN[2:]]
    assert kinds(TWIN[0], DONE, *TWIN[2:], CLOSED_B) == {SWALLOWED}
    assert not kinds(TWIN[0], *short, CLOSED_B)
