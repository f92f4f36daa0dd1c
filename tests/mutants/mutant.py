"""A mutant: a small fault that is put into a copy of the project, to see whether the model finds it."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One fault of a file.

    Attributes:
        breaks: what it breaks, in a sentence.
        old: text that stands once in the file.
        new: text that takes its place.
        scenario: the scenario of the simulation that is tried first.
        test: the test outside of the model that is tried first, for what the model does not see: how soon,
            for example, and not whether.
    """

    breaks: str
    old: str
    new: str
    scenario: str = ""
    test: str = ""
