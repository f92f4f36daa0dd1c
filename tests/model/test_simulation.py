"""The simulation finds no broken promise outside the accepted list, and what it finds is repeated by its tuple.

`MODEL_DEPTH=nightly` widens it to pairs of fates with each cancellation and several orders.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import pytest

from fastdedup import claim as claim_module

from . import scenarios
from .exploring import pairs_of_fates, single_fates, uncancelled
from .promises import ACCEPTED
from .simulation import SCENARIOS, Outcome, Run, replay, simulating

NIGHTLY = os.environ.get("MODEL_DEPTH") == "nightly"
ORDERS = range(1, 6) if NIGHTLY else (1,)
SMALL = ("redeem_then_consume", "failed_anew", "released_anew", "transition", "release_and_claim")
"""Scenarios whose pairs of fates are simulated each time."""
RUNS: dict[str, int] = dict.fromkeys(SCENARIOS, 0)

pytestmark = [
    pytest.mark.no_cover,
    pytest.mark.skipif(not claim_module.__file__.endswith(".py"), reason="a compiled module's clock cannot be replaced"),
]


def outcomes(scenario: str) -> Iterable[Outcome]:
    yield from single_fates(scenario)
    for order in ORDERS:
        yield from single_fates(scenario, order) if NIGHTLY else uncancelled(scenario, order)
    if NIGHTLY or scenario in SMALL:
        yield from pairs_of_fates(scenario, cancels=NIGHTLY)


@pytest.mark.timeout(4 * 3600 if NIGHTLY else 300)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_fate_and_cancellation_keeps_the_promises(scenario: str) -> None:
    runs, broken, accepted = 0, list[Outcome](), Counter[str]()
    with simulating():
        for outcome in outcomes(scenario):
            runs += 1
            accepted += outcome.accepted
            if outcome.broken:
                broken.append(outcome)
    assert not broken, f"{len(broken)} of {runs} runs break a promise, such as\n{min(broken, key=Outcome.size)}"
    assert runs >= 0
