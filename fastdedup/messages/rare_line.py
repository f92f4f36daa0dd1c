"""When a line about a trouble that repeats is written: the log tells of it, and is not filled by it."""

from __future__ import annotations

from time import monotonic
from typing import Final

_PAUSE: Final = 60.0
"""Seconds from one line to the next."""


class RareLine:
    """One trouble of one consumer, that comes again and again: a line at once, then one a minute."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        # Mutable: when the next line may be written.
        self._next = 0.0

    def is_due(self) -> bool:
        """True where a line is to be written now."""
        now = monotonic()
        if now < self._next:
            return False
        self._next = now + _PAUSE
        return True
