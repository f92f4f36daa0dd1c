"""A clock that stands still until a test moves it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..checks import Seconds, check_seconds, is_number, shown
from ..errors import ConfigError

_MICRO = 1_000_000
_LATEST = 253_402_300_799
"""The end of the year 9999: milliseconds were given in place of seconds."""


class Clock:
    """Seconds since 1970, for a store in memory. It begins at the present second, and then stands still.

    Leases, `ttl`s, tokens and ledgers' windows end by it. What a caller waits by (`wait=`, `timeout=`) is real time.

    Args:
        now: seconds since 1970 at which it begins.

    Raises:
        ConfigError: `now` is no time.
    """

    def __init__(self, now: float | None = None) -> None:
        # Mutable: the time in whole microseconds, so that ten steps of 0.1 s are one second; who is told of a move.
        self._us = int(time.time()) * _MICRO if now is None else round(_checked(now) * _MICRO)
        self.before_move: list[Callable[[float], None]] = []
        """Called with the seconds of each move, before it."""
        self.after_move: list[Callable[[], None]] = []
        """Called after each move."""

    def __call__(self) -> float:
        """Return the seconds since 1970, as a store asks for them."""
        return self._us / _MICRO

    def __repr__(self) -> str:
        return f"<Clock {self.now:.6f}>"

    @property
    def now(self) -> float:
        """Seconds since 1970."""
        return self._us / _MICRO

    def advance(self, seconds: Seconds) -> None:
        """Let time pass, in seconds or as a timedelta. What ends within it has ended when this returns.

        A claim that renews its lease (`renew=True`) keeps it. In an outage it is lost when it ends, unless the policy
        renews it, as `LocalLRU` does with what it has answered. Where its key was forgotten, it is lost when a third
        of the lease is over, and its owner asks to renew it.

        Raises:
            ConfigError: it is no length of time. A clock does not go back.
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
            ConfigError: that is no time, or in the clock's past.
        """
        if _checked(now) < self.now:
            raise ConfigError(f"the clock shows {self.now:.6f} and does not go back, got {now:.6f}")
        self.advance(now - self.now)


def _checked(now: Any) -> float:
    """Return a time in seconds since 1970."""
    if not is_number(now) or not 0 <= now <= _LATEST:
        raise ConfigError(
            f"a clock's time must be a number of seconds since 1970, as time.time() returns, got {shown(now)}"
        )
    return float(now)
