"""Compares a server's clock with that of the server before it: after a failover leases end by another clock."""

from __future__ import annotations

import time
from collections.abc import Callable

MAX_SKEW = 3.0
"""Seconds by which a clock may differ where nobody has said how long a lease is."""


class FormerClock:
    """Reports a clock that shows another time than the store's servers did until now.

    Args:
        error: seconds by which a server's answer may be old.
        report: called with the seconds by which the clock is ahead.
    """

    def __init__(self, error: float, report: Callable[[float], None]) -> None:
        self._error = error
        self._report = report
        self.max_skew = MAX_SKEW
        """Seconds by which a clock may differ."""
        # Mutable: by how much the last server was ahead of this process's monotonic clock, and of its wall clock.
        self._ahead: tuple[float, float] | None = None

    def heard(self, now_us: int) -> None:
        """Take in what the server at a new connection shows; 0 where it did not say."""
        if not now_us:
            return
        now = now_us / 1_000_000
        former, self._ahead = self._ahead, (now - time.monotonic(), now - time.time())
        if former is None:
            return
        # The smaller one: the monotonic clock stands still while the machine sleeps, and the wall clock may be set.
        offset = min((ahead - before for ahead, before in zip(self._ahead, former, strict=True)), key=abs)
        if abs(offset) - self._error > self.max_skew:
            self._report(offset)
