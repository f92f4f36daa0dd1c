"""The simulation finds no broken promise outside the accepted list, and what it finds is repeated by its tuple.

With a fate, the client is cancelled at every second step; with `MODEL_DEPTH` set at each, and with
`MODEL_DEPTH=quick` at every twelfth. `MODEL_DEPTH=nightly` widens it to several orders of tasks, to pairs of fates
with each cancellation, and to second cancellations with each fate.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from fastdedup import Outcome as ClaimOutcome
from fastdedup import claim as claim_module
from fastdedup.kernel.operations import Op, Reply

from ..programs import ended
from .exploring import (
    cancelled_twice,
    lost_at_first,
    pairs_of_fates,
    single_fates,
    twice_for_single_fates,
    uncancelled,
)
from .far_end import SpecFarEnd
from .network import FATES
from .simulation import SCENARIOS, Outcome, Run, replay, simulate, simulating

ROOT = Path(__file__).parents[2]
DEPTH = os.environ.get("MODEL_DEPTH", "")
NIGHTLY = DEPTH == "nightly"
EVERY = {"": 2, "quick": 12}.get(DEPTH, 1)
"""The steps at which a client whose packets meet a fate is cancelled; `make mutants` and `make model` try each."""
ORDERS = range(1, 6) if NIGHTLY else (1,)
SMALL = ("alone", "redeem_then_consume", "released_anew", "transition", "release_and_claim")
"""Scenarios whose pairs of fates are simulated each time."""
FEWEST = {
    "claim_and_complete": 600,
    "async_with": 300,
    "once": 1150,
    "release_and_claim": 1400,
    "redeem": 400,
    "consume": 300,
    "failed_use": 200,
    "failed_first": 550,
    "redeem_what_is_consumed": 300,
    "redeem_then_consume": 550,
    "transition": 350,
    "lock": 1450,
    "claim_many": 700,
    "first": 800,
    "first_many": 950,
    "wait": 950,
    "renew": 1250,
    "remember": 800,
    "local_lru": 400,
    "completed_anew": 450,
    "failed_anew": 650,
    "released_anew": 600,
    "two_loops": 550,
    "two_gates": 500,
    "twins": 250,
    "named_owner": 500,
    "named_again": 650,
    "named_hedge": 100,
    "asked_again_by_name": 100,
    "alone": 400,
    "breaker": 70,
    "forget": 250,
    "wait_resubscribed": 160,
    "wait_unheard": 160,
    "renew_in_vain": 200,
    "first_again": 650,
    "first_elsewhere": 140,
    "first_many_elsewhere": 140,
    "completed_inside": 250,
    "released_and_taken": 120,
    "local_lru_alone": 250,
    "local_lru_frees": 100,
    "local_lru_overrules": 90,
    "local_lru_holds": 50,
    "local_lru_goes_on": 50,
    "local_lru_gives_way": 400,
    "released_by_name": 240,
}
"""Runs of each scenario, at least: 15,000 together. A scenario that gets shorter by mistake is noticed."""
MET = {
    "local_lru_overrules": {"conflict behind a lost reply"},
}
"""What each scenario meets of the accepted list, with single fates."""
FOUND = (
    Run("local_lru", ((0, "hung"), (2, "hung")), 3),
    Run("claim_many", ((0, "copied"), (2, "refused")), 14),
    Run("redeem_what_is_consumed", ((1, "lost"), (3, "copied")), 33, 2),
)
"""Runs with two faults that `make model` has found, and that broke a promise then."""
SEEDS = ("1", "2")

pytestmark = [
    pytest.mark.no_cover,
    pytest.mark.skipif(
        not str(claim_module.__file__).endswith(".py"),
        reason="the clock of a compiled module cannot be replaced",
    ),
]


def outcomes(scenario: str) -> Iterable[Outcome]:
    yield from single_fates(scenario, every=EVERY)
    yield from cancelled_twice(Run(scenario))
    yield from (simulate(run) for run in FOUND if run.scenario == scenario)
    if NIGHTLY:
        yield from twice_for_single_fates(scenario, FATES)
    for order in ORDERS:
        yield from single_fates(scenario, order) if NIGHTLY else uncancelled(scenario, order)
    if NIGHTLY or scenario in SMALL:
        yield from pairs_of_fates(scenario, cancels=NIGHTLY)
    if scenario == "release_and_claim":
        yield from lost_at_first(scenario, EVERY)
    if NIGHTLY:
        yield from pairs_of_fates(scenario, 1, cancels=True)


def accepted_in(name: str, simulated: Iterable[Outcome], fewest: int) -> Counter[str]:
    """Fail if one of these runs breaks a promise, or if they are too few. Return what was accepted in them."""
    runs, broken, accepted = 0, list[Outcome](), Counter[str]()
    with simulating():
        for outcome in simulated:
            runs += 1
            accepted += outcome.accepted
            if outcome.broken:
                broken.append(outcome)
    print(f"{name}: {runs} runs, accepted: {dict(accepted)}")
    if broken:
        shortest = min(broken, key=lambda outcome: (len(outcome.run.fates), len(outcome.trace)))
        pytest.fail(f"{len(broken)} of {runs} runs break a promise; the shortest:\n{shortest}", pytrace=False)
    assert DEPTH or runs >= fewest  # a mutant that makes fewer packets is not found by that
    return accepted


@pytest.mark.timeout(8 * 3600 if NIGHTLY else 300)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_fate_and_cancellation_keeps_the_promises(scenario: str) -> None:
    accepted = accepted_in(scenario, outcomes(scenario), FEWEST[scenario])
    assert NIGHTLY or accepted.keys() <= MET.get(scenario, set())


def test_there_are_enough_runs_of_every_scenario() -> None:
    assert FEWEST.keys() == SCENARIOS.keys()
    assert sum(FEWEST.values()) >= 15_000


RUNS = (
    Run("lock", ((1, "copied"),), 0, 3),
    Run("once", ((1, "lost"), (3, "outage")), 9, 2),
    Run("local_lru", ((0, "outage"),)),
)


def test_a_run_is_repeated_exactly_by_its_tuple() -> None:
    for run in RUNS:
        first = replay(run)
        assert str(replay(run)) == str(first)
        assert len(first.trace) > 10


def test_another_process_repeats_a_run_exactly() -> None:
    """So a tuple from a log of CI is enough: nothing depends on hashes or addresses."""
    program = "from tests.model.test_simulation import *\nfor run in RUNS: print(replay(run))"
    printed = [
        ended("-c", program, cwd=ROOT, environment={**os.environ, "PYTHONHASHSEED": seed}, check=True).stdout
        for seed in SEEDS
    ]
    assert printed[0] == printed[1] == "".join(f"{replay(run)}\n" for run in RUNS)


class ForgetfulFarEnd(SpecFarEnd):
    """Gives a key that is held to the second owner as well."""

    def apply(self, op: Op) -> Reply:
        reply = super().apply(op)
        if getattr(reply, "outcome", None) is ClaimOutcome.IN_PROGRESS:
            reply.outcome, reply.fence = ClaimOutcome.ACQUIRED, reply.fence + 1  # type: ignore[union-attr]
        return reply


def test_a_failure_shows_its_tuple_its_packets_and_what_was_told() -> None:
    with simulating():
        shown = str(simulate(Run("two_gates"), far_end=ForgetfulFarEnd))
    assert shown.startswith(
        "replay(Run(scenario='two_gates', fates=(), cancel_step=0, order=0, cancel_again=0, cluster='', "
        "sentinels=False))\n"
    )
    assert "second holds 'k' beside main" in shown
    assert "0.0020 packet 0 claim sim:=k" in shown
    assert "takes effect: acquired(fence 17" in shown
    assert "main: does the work of 'k'" in shown
