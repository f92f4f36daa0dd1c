"""The breaker: decides when to stop asking a store that does not answer, and when to probe it.

It has no clock, no connection and no task. `StoreHealth` reports the end of each batch and each probe to it, and
acts on its decisions.
"""

from __future__ import annotations

from ..backoff import Backoff
from ..model import BreakerState

FAILURES = 3
"""Failed batches in a row that open the breaker. Fewer failures concern only the callers of those batches."""
FIRST_PAUSE = 0.05
"""Seconds from opening to the first probe."""
LONGEST_PAUSE = 0.4
"""The most seconds between two probes. With the probe's own time, a store that is back is found within a second."""
_PROBES = Backoff(FIRST_PAUSE, LONGEST_PAUSE)


class Breaker:
    """Opens after `failures` failed batches in a row; closes when a probe succeeds.

    While it is open only probes are sent: callers are refused at once, and a store that comes back
    does not get all their operations together. The times of the probes are random, so that a thousand
    processes do not probe in step.

    Args:
        failures: failed batches in a row that open the breaker.
        probes: the pauses between two probes.
    """

    __slots__ = ("_failures", "_pauses", "_probes", "failed_in_a_row", "reason", "state")

    def __init__(self, failures: int = FAILURES, probes: Backoff = _PROBES) -> None:
        self._failures = failures
        self._probes = probes
        # Mutable: the state, the text of the last failure, and the pauses since it opened.
        self.state = BreakerState.CLOSED
        self.failed_in_a_row = 0
        self.reason = ""
        self._pauses = 0

    def succeeded(self) -> None:
        """Take note of a batch that was answered. While the breaker is open only a probe closes it."""
        self.failed_in_a_row = 0

    def failed(self, reason: str) -> bool:
        """Take note of a batch that was not answered; return True if that opens the breaker."""
        self.failed_in_a_row += 1
        self.reason = reason
        if self.state is BreakerState.OPEN or self.failed_in_a_row < self._failures:
            return False
        self.state = BreakerState.OPEN
        self._pauses = 0
        return True

    def pause(self) -> float:
        """Return the seconds until the next probe."""
        self._pauses += 1
        return self._probes.pause(self._pauses - 1)

    def probed(self, reason: str | None) -> bool:
        """Take note of a probe: `reason` says why it failed; None means that it succeeded, which closes the breaker.

        Returns True if the breaker has closed.
        """
        if reason is not None:
            self.reason = reason
            return False
        self.state = BreakerState.CLOSED
        self.failed_in_a_row = 0
        return True
