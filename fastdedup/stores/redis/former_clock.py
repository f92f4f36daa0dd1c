"""Compares a server's clock with that of the server before it: after a failover another clock ends the leases."""

from __future__ import annotations

import time
from collections.abc import Callable

MAX_SKEW = 3.0
"""Seconds by which a clock may differ if the store does not know how long a lease is."""


class FormerClock:
    """Reports a clock that shows another time than the store's servers did until now.

    Args:
        error: seconds by which a server's answer may be old.
        report: called with the seconds by which the clock is ahead.
        limit: returns the seconds by which a clock may differ.
    """

    def __init__(
        self, error: float, report: Callable[[float], None], limit: Callable[[], float] = lambda: MAX_SKEW
    ) -> None:
        self._error = error
        self._report = report
        self._limit = limit
        # Mutable: how far the last server was ahead of this process's monotonic clock, and of its wall clock.
        self._ahead: tuple[float, float] | None = None

    def heard(self, now_us: int) -> None:
        """Compare the time of the server at a new connection; 0 if the server did not give its time."""
        if not now_us:
            return
        now = now_us / 1_000_000
        former, self._ahead = self._ahead, (now - time.monotonic(), now - time.time())
        if former is None:
            return
        # The smaller one: the monotonic clock stands still while the machine sleeps, and the wall clock may be set.
        offset = min((ahead - before for ahead, before in zip(self._ahead, former, strict=True)), key=abs)
        if abs(offset) - self._error > self._limit():
            self._report(offset)
