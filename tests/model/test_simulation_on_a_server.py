"""With a real redis-server as the far end, in virtual time, the simulated gates do the same as with the spec."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import pytest

from ..fixtures import fixture_with
from . import network
from .exploring import uncancelled
from .server import Server, ServerFarEnd
from .simulation import SCENARIOS, Outcome, Run, simulate, simulating
from .test_simulation import NIGHTLY, pytestmark

assert pytestmark


server = fixture_with(lambda: closing(Server()), scope="module")


@pytest.mark.timeout(3600 if NIGHTLY else 300)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_real_server_may_be_the_far_end(
    scenario: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Undisturbed it leads to the very trace that the spec leads to. `make model` tries each fate of each packet."""
    monkeypatch.setattr(network, "LONGER", 0.0)  # a server's records end at whole milliseconds of its clock

    def simulates(run: Run) -> Outcome:
        return simulate(run, traced=True, far_end=partial(ServerFarEnd, server))

    with simulating():
        run = Run(scenario)
        assert str(simulates(run)) == str(simulate(run, traced=True))
        broken = [each for each in uncancelled(scenario, 0, simulates) if each.broken] if NIGHTLY else []
    assert not broken, f"{len(broken)} runs break a promise; the first:\n{broken[0]}"
