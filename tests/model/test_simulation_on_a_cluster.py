"""Over a simulated Cluster, whose slots move and whose primaries fail, the gate keeps the same promises."""

from __future__ import annotations

import pytest

from .cluster import FORMS
from .exploring import failovers, on_cluster
from .simulation import Run
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
TWICE = {
    "claim_and_complete": 6,
    "redeem": 7,
    "wait": 12,
    "renew": 8,
    "lock": 15,
    "claim_many": 9,
    "first": 8,
}
"""The same with two failovers, in each form of a batch."""
EVERY = 1 if NIGHTLY else 60
"""The steps at which a client whose packets meet a fate is cancelled."""
PAIRS = 1 if NIGHTLY else 7
"""Every so many-th failover, twice; no multiple of the number of fates, so that each has its turn."""


@pytest.mark.timeout(8 * 3600 if NIGHTLY else 300)
@pytest.mark.parametrize("scenario", FEWEST)
def test_the_promises_are_kept_on_a_cluster(scenario: str) -> None:
    assert not accepted_in(scenario, on_cluster(scenario, EVERY, thorough=NIGHTLY), FEWEST[scenario])


@pytest.mark.timeout(8 * 3600 if NIGHTLY else 300)
@pytest.mark.parametrize("scenario", TWICE)
@pytest.mark.parametrize("form", FORMS)
def test_the_promises_are_kept_in_two_failovers(scenario: str, form: str) -> None:
    outcomes = failovers(Run(scenario, cluster=form), PAIRS)
    assert not accepted_in(scenario, outcomes, TWICE[scenario])
