"""Limits the log lines of a trouble that repeats: the log shows it, but is not filled with it."""

from __future__ import annotations

from math import inf
from time import monotonic


class LogThrottle:
    """Lets the first lines of a window pass, and counts the others. A window begins with its first line.

    Args:
        lines: the number of lines that pass in one window.
        window: seconds of a window. With `inf` the first one never ends: then the owner's timer calls
            `take_left_out`, and drops the throttle once that returns 0.
    """

    __slots__ = ("_began", "_left_out", "_lines", "_passed", "_window")

    def __init__(self, lines: int = 1, window: float = 60.0) -> None:
        self._lines = lines
        self._window = window
        # Mutable: when the window began, the lines that have passed in it, and those that were left out.
        self._began = -inf
        self._passed = 0
        self._left_out = 0

    def passes(self, now: float | None = None) -> bool:
        """True if a line may be written now; else it is counted. `now`: by another clock than `time.monotonic`."""
        if now is None:
            now = monotonic()
        if not 0.0 <= now - self._began < self._window:  # a negative time means that the clock was set back
            self._began, self._passed = now, 0
        if self._passed >= self._lines:
            self._left_out += 1
            return False
        self._passed += 1
        return True

    def take_left_out(self) -> int:
        """Return how many lines were left out since the last call."""
        count, self._left_out = self._left_out, 0
        return count
