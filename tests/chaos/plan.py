"""What will be done to whom, drawn from one seed: the same seed gives the same plan, for ever on."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SHORTEST, USUAL = 0.3, 1.0
SKEWED = (0, 0, 0, 0, 30, -30)
"""Seconds by which a worker's clock is wrong all through a run."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run.

    Attributes:
        seed: of the clients' steps and of the fault's own choices.
        seconds: how long the fault lasts.
        known: seconds for which workers repeat known duplicates by themselves; 0 is off.
        skews: seconds by which each worker's clock is wrong.
    """

    number: int
    fault: str
    seed: int
    seconds: float
    known: float
    skews: tuple[int, ...]


def plan(seed: int, faults: Sequence[str], workers: int) -> Iterator[Run]:
    """Yield runs without end: rounds of all the faults, each round in an order of its own."""
    draw = random.Random(seed)
    number = 0
    while True:
        for fault in draw.sample(faults, len(faults)):
            number += 1
            yield Run(
                number,
                fault,
                seed=draw.randrange(1 << 32),
                seconds=round(draw.uniform(SHORTEST, USUAL), 2),
                known=draw.choice((0.0, 1.0)),
                skews=tuple(draw.choice(SKEWED) for _ in range(workers)),
            )
