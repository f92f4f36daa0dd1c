"""A clock that stands still until a test moves it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..checks import Seconds, check_seconds, is_number, shown
from ..errors import ConfigError

_MICRO = 1_000_000
_LATEST = 253_402_300_799
"""The end of the year 9999: a later time means that milliseconds were given instead of seconds."""


class Clock:
    """Seconds since 1970, for a store in memory. It begins at the present second, and then stands still.

    Leases, `ttl`s, tokens and ledgers' windows end by it. The waits of callers (`wait=`, `timeout=`) use real time.

    Args:
        now: its first time, in seconds since 1970.

    Raises:
        ConfigError: `now` is not a time.
    """

    def __init__(self, now: float | None = None) -> None:
        # Mutable: the time in whole microseconds, so that ten steps of 0.1 s are one second; the callbacks of moves.
        self._us = int(time.time()) * _MICRO if now is None else round(_checked(now) * _MICRO)
        self.before_move: list[Callable[[float], None]] = []
        """Called with the seconds of each move, before it."""
        self.after_move: list[Callable[[], None]] = []
        """Called after each move."""

    def __call__(self) -> float:
        """Return the seconds since 1970, for a store."""
        return self._us / _MICRO

    def __repr__(self) -> str:
        return f"<Clock {self.now:.6f}>"

    @property
    def now(self) -> float:
        """Seconds since 1970."""
        return self._us / _MICRO

    def advance(self, seconds: Seconds) -> None:
        """Let time pass: seconds or a timedelta. Leases and windows that end in it have ended when this returns.

        A claim that renews its lease (`renew=True`) keeps it. In an outage the lease is lost when it ends, unless the
        policy renews it: `LocalLRU` renews its own answers. If its key was forgotten, the lease is lost when a third
        of it is over and its owner tries to renew it.

        Raises:
            ConfigError: `seconds` is not a length of time. A clock does not go back.
        """
        moved = check_seconds(seconds, "seconds", least=0.0)
        for before in tuple(self.before_move):
            before(moved)
        self._us += round(moved * _MICRO)
        for after in tuple(self.after_move):
            after()

    def move_to(self, now: float) -> None:
        """Let time pass until `now`, in seconds since 1970.

        Raises:
            ConfigError: `now` is not a time, or is in the clock's past.
        """
        if _checked(now) < self.now:
            raise ConfigError(f"the clock shows {self.now:.6f} and does not go back, got {now:.6f}")
        self.advance(now - self.now)


def _checked(now: Any) -> float:
    """Return a checked time in seconds since 1970."""
    if not is_number(now) or not 0 <= now <= _LATEST:
        raise ConfigError(
            f"a clock's time must be a number of seconds since 1970, like time.time(), got {shown(now)}"
        )
    return float(now)
