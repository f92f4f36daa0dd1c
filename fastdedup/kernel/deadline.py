"""One timer for all operations of an engine, set for the earliest deadline. A blocked loop is not a slow store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

GRACE: Final = 0.05
"""Further seconds that a batch gets, once, after the loop was blocked: its replies may lie in the socket unread."""
BLOCKED: Final = 0.02
"""A loop that runs a timer this many seconds late counts as blocked."""
_ONE_POLL: Final = 0.001
"""Seconds in which the loop reads its sockets once more, before a batch is given up."""


class Deadline:
    """Calls `come_due` with a time of the loop: operations with a deadline before it are given up.

    It is called only after the loop has read its sockets once more, because unread replies may be there. If the loop
    was blocked by a callback of the user, the commands may not even have been sent; then there is a longer grace.

    Args:
        timeout: seconds within which the grace is given once.
        earliest: returns the earliest deadline, in the loop's time; None if no operation is open.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timeout: float,
        earliest: Callable[[], float | None],
        come_due: Callable[[float], None],
    ) -> None:
        self._loop = loop
        self._timeout = timeout
        self._earliest = earliest
        self._come_due = come_due
        # Mutable: when the timer rings; since when the due operations have had their grace; 0 if they had none.
        self._rings_at = 0.0
        self._excused_at = 0.0
        self.timer: asyncio.TimerHandle | None = None
        """None if no timer is set."""
        self.missed = f"the store was busy for {timeout:g} s"
        """The text of the error for an operation that was not sent in time."""

    def set(self) -> None:
        """Set the timer for the earliest deadline."""
        earliest = self._earliest()
        if earliest is not None:
            self._ring_at(earliest)

    def bring_forward(self, deadline: float) -> None:
        """Cancel a timer that rings after `deadline`, so that the next `set` sets an earlier one."""
        if self._rings_at > deadline:
            self.cancel()

    def cancel(self) -> None:
        """Cancel the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _ring_at(self, time: float) -> None:
        self._rings_at = time
        self.timer = self._loop.call_at(time, self._ring)

    def _ring(self) -> None:
        self.timer = None
        now = self._loop.time()
        blocked = now - self._rings_at > BLOCKED
        first = not self._excused_at
        if first or (blocked and now < self._excused_at + self._timeout):
            if first:
                self._excused_at = now
            self._ring_at(now + (GRACE if blocked else _ONE_POLL))
            return
        # Operations that have come due since then get their own reading of the socket.
        before, self._excused_at = self._excused_at, 0.0
        self._come_due(before)
