"""Pauses before the next attempt. Each is longer than the last, and partly random, so that a thousand processes do
not repeat in step.
"""

from __future__ import annotations

import random
from collections.abc import Callable

_MOST_GROWTHS = 60
"""The number of pauses after which the pause stops growing, because a float has a largest value."""


class Backoff:
    """Pauses that grow. It has no state: its user counts the attempts.

    Args:
        first: the most seconds of the first pause.
        longest: the most seconds of any pause.
        growth: the next pause is so many times as long as the last one.
        steady: the fixed part of a pause; the rest is random. With 1.0 a pause always has its full length.
    """

    __slots__ = ("_first", "_growth", "_longest", "_steady")

    def __init__(self, first: float, longest: float, *, growth: float = 1.6, steady: float = 0.5) -> None:
        self._first = first
        self._longest = longest
        self._growth = growth
        self._steady = steady

    def longest(self, pauses: int) -> float:
        """Return the most seconds of the next pause. `pauses`: the number of pauses before it."""
        return min(self._first * self._growth ** min(pauses, _MOST_GROWTHS), self._longest)

    def draw(self, longest: float, chance: Callable[[], float] = random.random) -> float:
        """Return the seconds of a pause of at most `longest`. `chance` returns a random number from 0 up to 1."""
        return longest * (self._steady + (1.0 - self._steady) * chance())

    def pause(self, pauses: int, chance: Callable[[], float] = random.random) -> float:
        """Return the seconds of the next pause; see `longest` and `draw`."""
        return self.draw(self.longest(pauses), chance)


UNANSWERED = Backoff(0.02, 0.4)
"""The pauses between two questions to a store that does not answer, for work that has time."""
