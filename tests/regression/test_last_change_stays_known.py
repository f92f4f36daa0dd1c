"""A machine's last change was forgotten after ALREADY or ILLEGAL, so that a move in an outage was outranked."""

from __future__ import annotations

import pytest

from fastdedup import Dedup, StateMachine, TransitionOutcome
from fastdedup.events import Conflict

from ..outage.test_reconciliation import WaitUntil, site_of

SIGNAL = {"red": ("green",), "green": ("amber",), "amber": ("red",)}


def signal(dedup: Dedup) -> StateMachine:
    return dedup.machine("signal", initial="red", transitions=SIGNAL)


@pytest.mark.parametrize(
    ("to", "outcome"),
    [("green", TransitionOutcome.ALREADY), ("red", TransitionOutcome.ILLEGAL)],
)
async def test_a_refused_move_keeps_the_known_change(
    to: str, outcome: TransitionOutcome, wait_until: WaitUntil
) -> None:
    async with site_of("killed", wait_until) as site:
        gate = await site.gate()
        machine = signal(gate.dedup)
        assert (await machine.transition("1", to="green")).changed
        assert (await machine.transition("1", to=to)).outcome is outcome
        site.strike()
        await gate.noticed()
        moved = await machine.transition("1", to="amber")
        assert (moved.changed, moved.degraded) == (True, True)
        await site.heal()
        await gate.came_home()
        assert gate.of(Conflict) == []
        assert await machine.get("1") == ("amber", 2)


async def test_another_processs_change_is_not_taken_for_our_own(wait_until: WaitUntil) -> None:
    """The version has moved on: that change is not known here, so the local move gives way."""
    async with site_of("killed", wait_until) as site:
        gate, other = await site.gate(), await site.gate()
        machine = signal(gate.dedup)
        assert (await machine.transition("1", to="green")).changed
        assert (await signal(other.dedup).transition("1", to="amber")).changed
        assert (await machine.transition("1", to="green")).outcome is TransitionOutcome.ILLEGAL
        site.strike()
        await gate.noticed()
        assert (await machine.transition("1", to="red")).degraded
        await site.heal()
        await gate.came_home()
        assert len(gate.of(Conflict)) == 1
        assert await machine.get("1") == ("amber", 2)
