"""`make mutants` takes an hour; that its table fits the code is looked at each time."""

from __future__ import annotations

from ..model import exploring
from ..model.simulation import SCENARIOS
from .table import ALL

assert exploring  # the scenarios have registered themselves


def test_the_text_of_each_mutant_stands_in_its_file_once() -> None:
    for numbered in ALL:
        assert numbered.text()
        assert numbered.mutant.scenario in {"", *SCENARIOS}


def test_there_are_a_hundred_different_mutants() -> None:
    assert len({(each.file, each.mutant.old, each.mutant.new) for each in ALL}) == len(ALL) >= 100
