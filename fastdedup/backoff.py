"""How long to pause before the next attempt: longer each time, and partly by chance, so that a thousand processes do
not repeat in step.
"""

from __future__ import annotations

import random
from collections.abc import Callable

_MOST_GROWTHS = 60
"""Pauses after which the pause grows no longer: a float has an end."""


class Backoff:
    """Pauses that grow. It has no state: its user counts the attempts.

    Args:
        first: seconds of the first pause, at most.
        longest: seconds of each pause, at most.
        growth: how many times as long as the last pause the next one is.
        steady: the part of a pause that is certain; the rest is drawn. With 1.0 a pause is as long as it can be.
    """

    __slots__ = ("_first", "_growth", "_longest", "_steady")

    def __init__(self, first: float, longest: float, *, growth: float = 1.6, steady: float = 0.5) -> None:
        self._first = first
        self._longest = longest
        self._growth = growth
        self._steady = steady

    def longest(self, pauses: int) -> float:
        """Return the seconds of the next pause, at most. `pauses`: those that were made before."""
        return min(self._first * self._growth ** min(pauses, _MOST_GROWTHS), self._longest)

    def draw(self, longest: float, chance: Callable[[], float] = random.random) -> float:
        """Return the seconds of a pause that is so long at most. `chance` draws a number from 0 up to 1."""
        return longest * (self._steady + (1.0 - self._steady) * chance())

    def pause(self, pauses: int, chance: Callable[[], float] = random.random) -> float:
        """Return the seconds of the next pause; see `longest` and `draw`."""
        return self.draw(self.longest(pauses), chance)


UNANSWERED = Backoff(0.02, 0.4)
"""The pauses between two questions to a store that does not answer, for work that has time."""
