"""A message is done once, at whichever step a delivery dies or loses its claim."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .crashes import COMMITTED, HELD, SETTLED, STAGES, UNSENT, WRITTEN, Played, Run

ROOT = Path(__file__).parents[2]
FEWEST = {
    "crash": 40,
    "crash, Redis forgets": 40,
    "takeover": 40,
    "takeover, Redis forgets": 40,
    "takeover, then crash": 50,
    "crash of synchronous code": 25,
}
"""Steps at which the first delivery dies or is taken over, at least."""
CRASHES = sum(fewest for name, fewest in FEWEST.items() if "crash" in name)
TAKEOVERS = sum(fewest for name, fewest in FEWEST.items() if "crash" not in name)
TOLD = {
    UNSENT: ("second", "second"),
    HELD: ("wait", "third"),
    WRITTEN: ("wait", "third"),
    COMMITTED: ("wait", "first"),
    SETTLED: ("first", "first"),
}
"""By the stage of a crash: what the second delivery is told at once, and the third one after the lease."""
TOLD_IF_REDIS_FORGETS = {
    stage: ("first", "first") if stage in (COMMITTED, SETTLED) else ("second", "second") for stage in STAGES
}
SECONDS = 240


def play(*names: str) -> dict[str, list[Played]]:
    """Play series of runs, in a process of its own, which forks for each run."""
    command = [sys.executable, "-m", "tests.model.crashes", *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[Played]] = {name: [] for name in names}
    for line in done.stdout.splitlines():
        name, run, *rest = json.loads(line)
        found[name].append(Played(Run(*run), *rest))
    return found


@pytest.mark.timeout(SECONDS + 60)
def test_a_message_is_done_once_wherever_a_delivery_stops() -> None:
    """In one test, because a process that can fork for each run takes long to begin."""
    found = play(*FEWEST)
    broken = [played for series in found.values() for played in series if played.broken]
    assert not broken, f"{len(broken)} runs, such as {broken[0]}"
    for name, series in found.items():
        stopped = [played for played in series if played.told["first"] == "died" or "other" in played.told]
        assert len(stopped) >= FEWEST[name]
        stages = {played.stage for played in stopped}
        assert stages == ({HELD, WRITTEN, COMMITTED} if name == "takeover, then crash" else {*STAGES})
    for name, told in (("crash", TOLD), ("crash, Redis forgets", TOLD_IF_REDIS_FORGETS)):
        dead = found[name][:-1]
        assert [(each.told["second"], each.told["third"]) for each in dead] == [
            told[each.stage] for each in dead
        ]
    for name in ("takeover", "takeover, Redis forgets", "takeover, then crash"):
        assert {doer for played in found[name] for doer in played.effects} == {"first", "other"}


def test_a_gate_without_an_inbox_is_seen_to_do_the_work_twice() -> None:
    series = play("crash without an inbox")["crash without an inbox"]
    twice = [played for played in series if played.effects == ["first", "third"]]
    assert twice == [played for played in series if played.stage == COMMITTED] != []
    assert [played for played in series if played.broken] == twice
