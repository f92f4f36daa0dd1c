"""The breaker: when to stop asking a store that does not answer, and when to look again.

A decider: it holds no clock, no connection and no task. The engine tells it what became of each
batch and each probe, and does what it says.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from ..model import BreakerState

FAILURES = 3
"""Batches in a row that fail before it opens: one failure is a blip, and costs its callers alone."""
FIRST_PAUSE = 0.05
"""Seconds from opening to the first probe."""
LONGEST_PAUSE = 0.4
"""Seconds between two probes at most: with the probe's own time, a store that is back is seen within a second."""
_GROWTH = 1.6


class Breaker:
    """Opens after `failures` failed batches in a row; closes when a probe succeeds.

    While it is open nothing is sent but probes: callers are answered at once, and a store that
    comes back is not met by all of them together. Probes are jittered, so that a thousand
    processes do not knock in step.

    Args:
        failures: batches in a row that fail before it opens.
        jitter: returns a number from 0 up to 1.
    """

    __slots__ = ("_failures", "_jitter", "_pause", "failed_in_a_row", "reason", "state")

    def __init__(self, failures: int = FAILURES, jitter: Callable[[], float] = random.random) -> None:
        self._failures = failures
        self._jitter = jitter
        # Mutable: where it stands, the last failure's text, and the pause before the next probe.
        self.state = BreakerState.CLOSED
        self.failed_in_a_row = 0
        self.reason = ""
        self._pause = FIRST_PAUSE

    def succeeded(self) -> None:
        """A batch was answered. One that was under way when it opened says nothing of the store now."""
        self.failed_in_a_row = 0

    def failed(self, reason: str) -> bool:
        """A batch was not answered; True where that opens the breaker."""
        self.failed_in_a_row += 1
        self.reason = reason
        if self.state is BreakerState.OPEN or self.failed_in_a_row < self._failures:
            return False
        self.state = BreakerState.OPEN
        self._pause = FIRST_PAUSE
        return True

    def pause(self) -> float:
        """Return the seconds until the next probe: growing, and jittered between half and all of it."""
        pause = self._pause
        self._pause = min(pause * _GROWTH, LONGEST_PAUSE)
        return pause * (0.5 + 0.5 * self._jitter())

    def probed(self, reason: str | None) -> bool:
        """A probe succeeded (None), which closes the breaker, or failed for a reason; True where it closed."""
        if reason is not None:
            self.reason = reason
            return False
        self.state = BreakerState.CLOSED
        self.failed_in_a_row = 0
        return True
