"""Two processes used one owner's name on both sides of an outage: both acted, and nobody was told of it."""

from __future__ import annotations

from typing import Any

import pytest

from fastdedup import Outcome
from fastdedup.events import Conflict, Replayed

from ..outage.test_reconciliation import Gate, Site, WaitUntil, site_of


async def completes(gate: Gate, result: Any) -> None:
    claim = await gate.dedup.claim("order", owner="w1")
    assert claim.acquired
    await claim.complete(result)


async def recovers(site: Site, gate: Gate) -> None:
    await site.heal()
    await gate.came_home()


def the_conflict(gate: Gate, kept: str) -> None:
    assert gate.of(Conflict) == [Conflict("shop", "order", "w1", "w1", kept)]
    assert gate.of(Replayed)[-1].conflicts == 1


@pytest.mark.parametrize("settled", [True, False])
async def test_a_result_of_another_process_under_one_name_is_a_conflict(
    settled: bool, wait_until: WaitUntil
) -> None:
    async with site_of("killed", wait_until) as site:
        theirs, ours = await site.gate(), await site.gate()
        await completes(theirs, "theirs")
        site.strike()
        claim = await ours.dedup.claim("order", owner="w1")
        assert (claim.acquired, claim.degraded) == (True, True)
        if settled:
            await claim.complete("ours")
        await recovers(site, ours)
        the_conflict(ours, kept="theirs")
        assert (await ours.dedup.claim("order")).result == "theirs"


async def test_a_result_that_was_evicted_here_is_a_conflict(wait_until: WaitUntil) -> None:
    """The same process, and it has forgotten."""
    async with site_of("killed", wait_until) as site:
        gate = await site.gate(maxsize=20)
        await completes(gate, "first")
        for number in range(25):
            await (await gate.dedup.claim(f"filler {number}")).complete()
        site.strike()
        await completes(gate, "second")
        await recovers(site, gate)
        the_conflict(gate, kept="theirs")


async def test_a_success_over_another_process_failure_is_a_conflict(wait_until: WaitUntil) -> None:
    async with site_of("killed", wait_until) as site:
        theirs, ours = await site.gate(), await site.gate()
        await (await theirs.dedup.claim("order", owner="w1")).fail("theirs")
        site.strike()
        await completes(ours, "ours")
        await recovers(site, ours)
        the_conflict(ours, kept="ours")
        assert (await theirs.dedup.claim("order")).result == "ours"


async def test_a_claim_at_work_under_one_name_is_its_own(wait_until: WaitUntil) -> None:
    """It cannot be told from the claim whose reply was lost: the same owner gets its own claim back."""
    async with site_of("killed", wait_until) as site:
        theirs, ours = await site.gate(), await site.gate()
        assert (await theirs.dedup.claim("order", owner="w1")).acquired
        site.strike()
        await completes(ours, "done")
        await recovers(site, ours)
        assert ours.of(Conflict) == []
        found = await theirs.dedup.claim("order")
        assert (found.outcome, found.result) == (Outcome.SUCCEEDED, "done")
