"""With sentinels, and a failover at each packet, the gate keeps the same promises.

The new primary may not know of what the former one has acknowledged: that is the one reason that is accepted here.
"""

from __future__ import annotations

import pytest

from .exploring import with_sentinels
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
EVERY = 1 if NIGHTLY else 60
"""The steps at which a client whose packets meet a fate is cancelled."""


@pytest.mark.timeout(8 * 3600 if NIGHTLY else 300)
@pytest.mark.parametrize("scenario", FEWEST)
def test_the_promises_are_kept_in_a_failover(scenario: str) -> None:
    outcomes = with_sentinels(scenario, EVERY, thorough=NIGHTLY)
    assert set(accepted_in(scenario, outcomes, FEWEST[scenario])) == {"forgotten by a failover"}
