"""Checks of numbers that users pass, shared by every place that takes one."""

from __future__ import annotations

import math
from typing import Any

from .errors import ConfigError

MAX_SECONDS = 10 * 365 * 86_400.0


def is_number(value: Any) -> bool:
    """True for an int or float that is finite, also as a float; False for a bool."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def check_count(value: Any, name: str, *, least: int = 1) -> int:
    """Return a whole number of at least `least`, or raise ConfigError naming it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} is a whole number of at least {least}, not {value!r}")
    return value


def check_seconds(value: Any, name: str, *, least: float = 0.001) -> float:
    """Return a time in seconds, or raise ConfigError naming it.

    Raises:
        ConfigError: no number, NaN, infinite, below `least`, or above ten years.
    """
    if not is_number(value):
        raise ConfigError(f"{name} is a time in seconds, not {value!r}")
    if not least <= value <= MAX_SECONDS:
        raise ConfigError(
            f"{name}={value!r}: must lie between {least:g} s and {MAX_SECONDS:.0f} s (ten years)"
        )
    return float(value)


def milliseconds(value: Any, name: str) -> int:
    """Return a time above zero as whole milliseconds, at least one. Raises as `check_seconds`."""
    return max(1, round(check_seconds(value, name) * 1000))
