"""Calls of a ledger and of a machine act once each, and each caller is told what its call did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import Any

import pytest

from . import calls, spec, windows, words
from .calls import ACCEPTED, FIRST_RULES, MOVE_RULES, Call, Orders, Rules, first, move

MOVES = (
    ("paid", "new"),
    ("paid", "new", 0),
    ("shipped", "paid"),
    ("shipped", "paid", 1),
    ("new", "paid shipped"),
    ("paid", "new shipped", 1),
    ("new", "paid", 2),
)
"""Transitions: to which state, from which states, and which version they expect."""

Found = tuple[int, int, tuple[int, ...]]
"""Schedules, worlds, and how many ends are accepted for each reason of `ACCEPTED`."""
FIRSTS: dict[tuple[int, int], Found] = {
    (2, 3): (262_356, 1_639, (24, 30)),
    (3, 3): (146_959_872, 13_914, (69, 117)),
    (4, 2): (12_565_704, 14_005, (36, 58)),
}
TRANSITIONS: dict[tuple[int, int], Found] = {
    (2, 3): (151_480, 4_572, (57, 0)),
    (3, 2): (909_720, 40_051, (689, 0)),
}
"""By the number of callers, and of sendings that get no reply."""


def played(games: Sequence[Sequence[Call]], rules: Rules, losses: int) -> Found:
    schedules, worlds, accepted = 0, 0, Counter[str]()
    for game in games:
        orders = Orders(game, rules, losses)
        schedules += orders.run()
        worlds += orders.worlds
        accepted += orders.accepted
    return schedules, worlds, tuple(accepted[reason] for reason in ACCEPTED)


def moves(callers: int) -> list[list[Call]]:
    chosen = combinations_with_replacement(MOVES, callers)
    return [[move(number, *each) for number, each in enumerate(game)] for game in chosen]


@pytest.mark.parametrize(("callers", "losses"), FIRSTS)
def test_of_calls_that_name_an_id_one_is_the_first(callers: int, losses: int) -> None:
    game = [first(number) for number in range(callers)]
    assert played([game], FIRST_RULES, losses) == FIRSTS[callers, losses]


@pytest.mark.parametrize(("callers", "losses"), TRANSITIONS)
def test_a_transition_moves_a_machine_once(callers: int, losses: int) -> None:
    assert played(moves(callers), MOVE_RULES, losses) == TRANSITIONS[callers, losses]


# The rules can fail


def forgets_who_moved(record: words.Record | None, ask: Any, now: Any) -> spec.Next:
    unnamed = record._replace(owner=b"somebody..") if record else None
    moved, reply = TRANSITION(unnamed, ask, now)
    return record if moved is unnamed else moved, reply


def is_never_unsure(record: words.Record | None, ask: Any, now: Any) -> spec.Next:
    plain = [getattr(ask, name) for name in ask.__slots__[:-1]]
    return TRANSITION(record, words.Transition(*plain), now)


TRANSITION = spec.transition


@pytest.mark.parametrize("fault", [forgets_who_moved, is_never_unsure])
def test_a_faulty_machine_breaks_a_rule(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(spec.RULE_OF, words.Transition, fault)
    with pytest.raises(AssertionError, match="broken: a caller is told what its transition did"):
        played(moves(3), MOVE_RULES, 2)


def test_a_call_without_a_name_breaks_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost reply makes a call a duplicate of itself."""

    def knows_no_call(place: windows.Place, ask: Any, now_us: int) -> Any:
        known = isinstance(ask, windows.First) and place.entry is not None
        return (place, windows.ALREADY) if known else windows.step(place, ask, now_us)

    monkeypatch.setattr(calls, "step", knows_no_call)
    with pytest.raises(AssertionError, match="broken: a duplicate is of a call that stands"):
        Orders([first(0)], FIRST_RULES, 1).run()


def test_a_call_without_patience_breaks_a_rule() -> None:
    """It is told that the id is a duplicate, and then the first call is taken back."""
    with pytest.raises(AssertionError, match="broken: a duplicate is of a call that stands"):
        Orders([first(0), first(1, patience=0)], FIRST_RULES, 1).run()
