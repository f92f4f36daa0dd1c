"""Calls of a ledger and of a machine act once each, and each caller is told what its call did."""

from __future__ import annotations

from itertools import combinations_with_replacement
from typing import Any

import pytest

from . import calls, spec, windows, words
from .calls import FIRST_RULES, MOVE_RULES, Orders, first, move

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


# What is found: schedules, worlds, and worlds that are accepted because a sending was held back and came later


def test_of_calls_that_name_an_id_one_is_the_first() -> None:
    found = []
    for callers, losses in ((2, 3), (3, 3), (4, 2)):
        orders = Orders([first(number) for number in range(callers)], FIRST_RULES, losses)
        found.append((orders.run(), orders.worlds, orders.accepted))
    assert found == [(5_410, 405, 60), (180_174, 2_651, 414), (141_624, 4_249, 432)]


def played(callers: int, losses: int) -> tuple[int, int, int]:
    schedules, worlds, accepted = 0, 0, 0
    for moves in combinations_with_replacement(MOVES, callers):
        orders = Orders([move(number, *each) for number, each in enumerate(moves)], MOVE_RULES, losses)
        schedules += orders.run()
        worlds += orders.worlds
        accepted += orders.accepted
    return schedules, worlds, accepted


@pytest.mark.parametrize(
    ("callers", "losses", "found"), [(2, 3, (151_480, 5_240, 78)), (3, 2, (909_720, 47_565, 1_449))]
)
def test_a_transition_moves_a_machine_once(callers: int, losses: int, found: tuple[int, int, int]) -> None:
    assert played(callers, losses) == found


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
    monkeypatch.setitem(spec._RULES, words.Transition, fault)
    with pytest.raises(AssertionError, match="broken: a caller is told what its call did"):
        played(3, 2)


def test_an_id_without_a_nonce_breaks_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost reply makes a call a duplicate of itself."""

    def knows_no_call(place: windows.Place, ask: Any, now_us: int) -> Any:
        after, reply = windows.step(place, ask, now_us)
        known = isinstance(ask, windows.First) and place.entry is not None
        return (place, windows.ALREADY) if known else (after, reply)

    monkeypatch.setattr(calls, "step", knows_no_call)
    with pytest.raises(AssertionError, match="broken: a caller is told what its call did"):
        Orders([first(0), first(1)], FIRST_RULES, 1).run()
