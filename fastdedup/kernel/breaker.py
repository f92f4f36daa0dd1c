"""The breaker: decides when to stop asking a store that does not answer, and when to probe it.

It has no clock, no connection and no task. `StoreHealth` reports the end of each batch and each probe to it, and
acts on its decisions.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from ..model import BreakerState

FAILURES = 3
"""Failed batches in a row that open the breaker. Fewer failures concern only the callers of those batches."""
FIRST_PAUSE = 0.05
"""Seconds from opening to the first probe."""
LONGEST_PAUSE = 0.4
"""Seconds between two probes at most. With the probe's own time, a store that is back is found within a second."""
_GROWTH = 1.6


class Breaker:
    """Opens after `failures` failed batches in a row; closes when a probe succeeds.

    While it is open only probes are sent: callers are refused at once, and a store that comes back
    does not get all their operations together. The times of the probes are random, so that a thousand
    processes do not probe in step.

    Args:
        failures: failed batches in a row that open the breaker.
        jitter: returns a number from 0 up to 1.
    """

    __slots__ = ("_failures", "_jitter", "_pause", "failed_in_a_row", "reason", "state")

    def __init__(self, failures: int = FAILURES, jitter: Callable[[], float] = random.random) -> None:
        self._failures = failures
        self._jitter = jitter
        # Mutable: the state, the text of the last failure, and the pause before the next probe.
        self.state = BreakerState.CLOSED
        self.failed_in_a_row = 0
        self.reason = ""
        self._pause = FIRST_PAUSE

    def succeeded(self) -> None:
        """Take note of a batch that was answered. While the breaker is open only a probe closes it."""
        self.failed_in_a_row = 0

    def failed(self, reason: str) -> bool:
        """Take note of a batch that was not answered; return True where that opens the breaker."""
        self.failed_in_a_row += 1
        self.reason = reason
        if self.state is BreakerState.OPEN or self.failed_in_a_row < self._failures:
            return False
        self.state = BreakerState.OPEN
        self._pause = FIRST_PAUSE
        return True

    def pause(self) -> float:
        """Return the seconds until the next probe: a growing pause, of which a random half to whole is taken."""
        pause = self._pause
        self._pause = min(pause * _GROWTH, LONGEST_PAUSE)
        return pause * (0.5 + 0.5 * self._jitter())

    def probed(self, reason: str | None) -> bool:
        """Take note of a probe: `reason` says why it failed, None that it succeeded, which closes the breaker.

        Returns True where the breaker has closed.
        """
        if reason is not None:
            self.reason = reason
            return False
        self.state = BreakerState.CLOSED
        self.failed_in_a_row = 0
        return True
