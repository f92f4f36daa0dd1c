"""One run of the demo's messages, as each way to deliver them is given it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .effects import Effects

KILLS: Final = 5
"""How often a consumer is killed."""
DEADLINE: Final = 60.0
"""Seconds that the work may take; it takes a tenth of them."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a run is asked for."""

    gate: str
    namespace: str
    messages: int
    on_paid: Callable[[int], object]


class MessageRun:
    """One run: its messages, and what is counted."""

    def __init__(self, given: Given, path: Path, effects: Effects) -> None:
        self.given = given
        self.path = path
        self.messages = [f"message-{number}" for number in range(given.messages)]
        self._effects = effects
        # Mutable: what the way counts.
        self.kills = 0
        self.duplicates = 0

    def deliveries(self) -> list[str]:
        """Return each message twice, in no order."""
        twice = self.messages * 2
        random.shuffle(twice)
        return twice

    def moments(self) -> list[int]:
        """Return when to kill: as so many messages are done."""
        count = len(self.messages)
        return sorted(random.sample(range(count), min(KILLS, count)))

    def paid(self) -> int:
        """Return how many payments were made, and tell of them."""
        count = self._effects.count()
        self.given.on_paid(min(count, len(self.messages)))
        return count
