"""Checks of what users pass: numbers, gates, and functions of a call's arguments."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from datetime import timedelta
from inspect import Parameter, Signature
from typing import Any, NamedTuple

from .errors import ConfigError

Seconds = float | timedelta
"""A length of time: a number of seconds, or a timedelta."""
MAX_SECONDS = 10 * 365 * 86_400.0
MOST_REASON = 256
"""The characters that the reason of an operator may have, who forgets a record or lists some."""
_NOISE = 1e-6
"""Milliseconds by which a float may be above its decimal value: 16.1 s must not become 16,101 ms."""


def is_number(value: Any) -> bool:
    """True for an int or float that is finite, also as a float; False for a bool."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def shown(value: Any) -> str:
    """Return a value as an error message may show it: a number as it is, any other value by its type.

    Text and bytes may be a password, or a URL that holds one: a setting was given the wrong variable.
    """
    if isinstance(value, timedelta):
        return f"timedelta({value})"
    if value is None or isinstance(value, bool | int | float):
        text = repr(value)
        return text if len(text) <= 40 else f"{text[:20]}... ({len(text)} digits)"
    return type(value).__name__


def named(value: Any) -> str:
    """Return the name of a class or function, or else of the value's type, for an error message."""
    if isinstance(value, type):
        return f"the class {value.__name__}: make an object of it"
    return type(value).__name__


def not_a_gate(given: object, name: str, wanted: str) -> ConfigError:
    """Return the error for a value that is not a gate.

    Args:
        given: the value; the message tells its type alone, because it may be a URL with a password.
        name: the argument, and the call that takes it.
        wanted: the gate's class.
    """
    return ConfigError(f"{name} must be a {wanted}, got {type(given).__module__}.{named(given)}")


def check_count(value: Any, name: str, *, least: int = 1) -> int:
    """Return a whole number of at least `least`, or raise ConfigError naming it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {shown(value)}")
    return value


def seconds_of(value: Any) -> Any:
    """Return a timedelta as seconds, and any other value as it is."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def check_seconds(value: Any, name: str, *, least: float = 0.001) -> float:
    """Return a length of time as seconds; `value` is a number of seconds or a timedelta.

    Raises:
        ConfigError: the value is not a finite number, is below `least` or above ten years; the message names it.
    """
    seconds = seconds_of(value)
    if not is_number(seconds):
        raise ConfigError(f"{name} must be a number of seconds or a timedelta, got {shown(value)}")
    if not least <= seconds <= MAX_SECONDS:
        raise ConfigError(
            f"{name} must be between {least:g} s and {MAX_SECONDS:.0f} s (ten years), got {shown(value)}"
        )
    return float(seconds)


def milliseconds(value: Any, name: str) -> int:
    """Return a length of time above zero as whole milliseconds, rounded up: a lease never ends early.

    Raises ConfigError as `check_seconds` does.
    """
    return max(1, math.ceil(check_seconds(value, name) * 1000 - _NOISE))


def check_arguments_rule(rule: Callable[..., Any], function: Callable[..., Any], name: str) -> None:
    """Check that a function of a call's arguments can take those of a decorated function.

    A function that does not tell its parameters passes, such as a builtin.

    Args:
        rule: called with the same positional and keyword arguments as `function`.
        function: the decorated function.
        name: the setting, for the error.

    Raises:
        ConfigError: no call fits both.
    """
    try:
        # Not of the function that a decorator wraps: it may be called with other arguments.
        taken = inspect.signature(function, follow_wrapped=False)
        wanted = inspect.signature(rule, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    most = max(len(taken.parameters), len(wanted.parameters))
    for positional in range(most + 1):
        ours, theirs = _keywords_after(taken, positional), _keywords_after(wanted, positional)
        if ours and theirs and ours.are_taken_by(theirs) and theirs.are_taken_by(ours):
            return
    label = getattr(function, "__qualname__", type(function).__name__)
    raise ConfigError(
        f"{name} takes ({', '.join(wanted.parameters)}), and no call of {label}({', '.join(taken.parameters)}) fits: "
        f"it is called with the same arguments as the function, so give it the same parameters"
    )


class _Keywords(NamedTuple):
    """The keyword arguments that a function takes behind its positional ones."""

    required: set[str]
    known: set[str]
    takes_any: bool

    def are_taken_by(self, other: _Keywords) -> bool:
        """True if another function takes each keyword that this one requires."""
        return other.takes_any or self.required <= other.known


def _keywords_after(signature: Signature, positional: int) -> _Keywords | None:
    """Return what a function takes after so many positional arguments; None if it cannot take so many, or so few."""
    parameters = signature.parameters.values()
    kinds = {each.kind for each in parameters}
    places = [
        each
        for each in parameters
        if each.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    ]
    if positional > len(places) and Parameter.VAR_POSITIONAL not in kinds:
        return None
    rest = [*places[positional:], *(each for each in parameters if each.kind is Parameter.KEYWORD_ONLY)]
    required = {each.name for each in rest if each.default is Parameter.empty}
    if any(each.name in required for each in rest if each.kind is Parameter.POSITIONAL_ONLY):
        return None
    known = {each.name for each in rest if each.kind is not Parameter.POSITIONAL_ONLY}
    return _Keywords(required, known, Parameter.VAR_KEYWORD in kinds)
