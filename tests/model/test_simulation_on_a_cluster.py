"""Over a simulated Cluster, whose slots move and whose primaries fail, the gate keeps the same promises."""

from __future__ import annotations

import pytest

from .exploring import on_cluster
from .test_simulation import NIGHTLY, accepted_in, pytestmark

assert pytestmark

FEWEST = {
    "claim_and_complete": 60,
    "redeem": 50,
    "wait": 90,
    "renew": 80,
    "lock": 90,
    "claim_many": 70,
    "first": 60,
}
"""Scenarios that are simulated here, and the least runs of each."""
EVERY = 1 if NIGHTLY else 60
"""The steps at which a client whose packets meet a fate is cancelled."""


@pytest.mark.timeout(8 * 3600 if NIGHTLY else 300)
@pytest.mark.parametrize("scenario", FEWEST)
def test_the_promises_are_kept_on_a_cluster(scenario: str) -> None:
    assert not accepted_in(scenario, on_cluster(scenario, EVERY, thorough=NIGHTLY), FEWEST[scenario])
