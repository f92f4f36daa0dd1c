"""With sentinels, and a failover at each packet, the gate keeps the same promises.

The new primary may not know of what the former one has acknowledged: that is the one reason that is accepted here.
"""

from __future__ import annotations

import pytest

from .exploring import failovers, with_sentinels
from .simulation import Run
from .test_simulation import NIGHTLY, accepted_in, pytestmark

assert pytestmark

FEWEST = {
    "claim_and_complete": 120,
    "redeem": 100,
    "wait": 250,
    "renew": 170,
    "lock": 200,
    "claim_many": 140,
    "first": 140,
}
"""Scenarios that are simulated here, and the least runs of each."""
TWICE = {
    "claim_and_complete": 8,
    "redeem": 11,
    "wait": 27,
    "renew": 14,
    "lock": 29,
    "claim_many": 15,
    "first": 10,
}
"""The same with two failovers."""
EVERY = 1 if NIGHTLY else 60
"""The steps at which a client whose packets meet a fate is cancelled."""
PAIRS = 1 if NIGHTLY else 7
"""Every so many-th failover, twice; no multiple of a number of fates, so that each has its turn."""


@pytest.mark.timeout(8 * 3600 if NIGHTLY else 300)
@pytest.mark.parametrize("scenario", FEWEST)
def test_the_promises_are_kept_in_a_failover(scenario: str) -> None:
    outcomes = with_sentinels(scenario, EVERY, thorough=NIGHTLY)
    assert set(accepted_in(scenario, outcomes, FEWEST[scenario])) == {"forgotten by a failover"}


@pytest.mark.timeout(8 * 3600 if NIGHTLY else 300)
@pytest.mark.parametrize("scenario", TWICE)
def test_the_promises_are_kept_in_two_failovers(scenario: str) -> None:
    """The second primary may end too, and the former one come back with what it had."""
    outcomes = failovers(Run(scenario, sentinels=True), PAIRS)
    assert set(accepted_in(scenario, outcomes, TWICE[scenario])) == {"forgotten by a failover"}
