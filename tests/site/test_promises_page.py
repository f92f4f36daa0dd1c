"""docs/promises.md: the figures of the model are those that its tests find."""

from __future__ import annotations

import re

from ..model import calls, interleavings
from ..model.test_calls import FIRSTS, TRANSITIONS
from ..model.test_closure import SCENES
from ..model.test_crashes import CRASHES, TAKEOVERS
from ..model.test_interleavings import CASTS
from ..model.test_simulation import FEWEST
from ..mutants.table import ALL
from ..sql_pages.pages import DOCS

SECTION = (
    (DOCS / "promises.md").read_text("utf-8").partition("\n## How it is tested\n")[2].partition("\n## ")[0]
)
ROWS = dict(re.findall(r"^\| (.+) \| ([\d,]+) \|$", SECTION, re.MULTILINE))
GAMES = [*FIRSTS.values(), *TRANSITIONS.values()]


def test_the_page_tells_how_much_the_model_tries() -> None:
    played = [(cast.schedules, cast.worlds) for cast in CASTS.values()] + [game[:2] for game in GAMES]
    found = {
        "places: what a store can keep under one key": sum(scene.places for scene in SCENES.values()),
        "transitions: an operation at a place, after a wait": sum(
            scene.transitions for scene in SCENES.values()
        ),
        "schedules: orders of what clients and faults do": sum(schedules for schedules, _ in played),
        "distinct worlds on these schedules": sum(worlds for _, worlds in played),
    }
    assert {name: ROWS[name] for name in found} == {name: f"{number:,}" for name, number in found.items()}


def test_the_page_tells_how_often_the_gate_is_simulated() -> None:
    assert f"in {sum(FEWEST.values()):,} runs at least" in " ".join(SECTION.split())


def test_the_page_tells_how_often_a_delivery_dies() -> None:
    text = " ".join(SECTION.split())
    assert f"at {CRASHES:,} steps at least" in text
    assert f"At {TAKEOVERS:,} further steps" in text


def test_the_page_tells_how_many_faults_are_tried() -> None:
    assert f"puts {len(ALL)} faults into" in SECTION


def test_the_page_tells_what_is_accepted() -> None:
    reasons = [
        *zip(
            interleavings.ACCEPTED, zip(*(cast.accepted for cast in CASTS.values()), strict=True), strict=True
        ),
        *zip(calls.ACCEPTED, zip(*(game[2] for game in GAMES), strict=True), strict=True),
    ]
    assert dict(list(ROWS.items())[4:]) == {reason: f"{sum(ends):,}" for reason, ends in reasons}
