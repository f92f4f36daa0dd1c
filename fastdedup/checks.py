"""Checks of the values that users pass: numbers, gates, and functions of a call's arguments."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from .errors import ConfigError, InvalidKeyError

T = TypeVar("T")
Seconds = float | timedelta
"""A length of time: a number of seconds, or a timedelta."""
MAX_SECONDS = 10 * 365 * 86_400.0
MOST_REASON = 256
"""The most characters of an operator's reason to forget or list records."""
NAME_CHARACTER = "[A-Za-z0-9_.:/-]"
"""The pattern of a character in the name of a namespace or a ledger. Between names, a store key has other ones."""
NAME = NAME_CHARACTER + "{1,64}"
"""The pattern of such a name."""
_NOISE = 1e-6
"""Milliseconds by which a float may be above its decimal value: 16.1 s must not become 16,101 ms."""


def is_number(value: Any) -> bool:
    """True for an int or float that is finite, even after conversion to a float; False for a bool."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def shown(value: Any) -> str:
    """Return the text for a value in an error message: a number itself, the type of any other value.

    Text and bytes may be a password, or a URL that holds one, if the caller passed the wrong variable.
    """
    if isinstance(value, timedelta):
        return f"timedelta({value})"
    if value is None or isinstance(value, bool | int | float):
        try:
            text = repr(value)
        except ValueError:  # Python's own limit of digits
            return f"a whole number of {int(value or 0).bit_length()} bits"
        return text if len(text) <= 40 else f"{text[:20]}... ({len(text)} digits)"
    return type(value).__name__


def whole_text(number: int, what: str) -> str:
    """Return the text of a whole number.

    Raises:
        InvalidKeyError: it has more digits than Python writes, 4,300 by default. `what`: its name in the message.
    """
    try:
        return int.__repr__(number)  # the str() of an enum's member is its name
    except ValueError:
        raise InvalidKeyError(
            f"a whole number in {what} is too long, it has {number.bit_length()} bits: take its digest"
        ) from None


def with_article(noun: str) -> str:
    """Return a type's name with its article: "a list", "an int"."""
    return f"{'an' if noun.startswith(tuple('aeioAEIO')) else 'a'} {noun}"


def named(value: Any) -> str:
    """Return the name of a class or function, or else of the value's type, for an error message."""
    if isinstance(value, type):
        return f"the class {value.__name__}: make an object of it"
    return type(value).__name__


def check_decorated(function: object) -> None:
    """Check that `once(…)` decorates what can be called.

    `@dedup.once` without parentheses takes the function for `key=`, and then a call's argument for the function.

    Raises:
        ConfigError: it cannot be called, or is a static method already. The message shows only its type, because it
            may be a customer's data.
    """
    if not callable(function) or isinstance(function, staticmethod):
        raise ConfigError(
            f"once() decorates functions, got {with_article(type(function).__name__)}: "
            "write @….once(key=…), with parentheses, below @classmethod, @staticmethod and @property"
        )


def call_text(function: Any) -> str:
    """Return a function's name and its parameters, for an error message: "begin(self, nested)"."""
    label = getattr(function, "__name__", type(function).__name__)
    return f"{label}({', '.join(inspect.signature(function, follow_wrapped=False).parameters)})"


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return how a function may be called; None if it does not show that, like a function of C."""
    try:
        # Not the parameters of the function that a decorator wraps: it may be called with other arguments.
        return inspect.signature(function, follow_wrapped=False)
    except Exception:  # noqa: BLE001 -- Python 3.14 also evaluates annotations, which may name what is not known here
        return None


def takes(function: Any, count: int) -> bool:
    """Return whether a function can be called with this number of arguments; True if it shows no signature."""
    signature = signature_of(function)
    if signature is None:
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def check_takes(function: Any, name: str, *given: str) -> None:
    """Raise ConfigError unless a function can be called with these arguments; `name` is the setting's."""
    if not takes(function, len(given)):
        wanted = " and ".join(given)
        raise ConfigError(f"{name} must be a function that takes {wanted} alone, got {call_text(function)}")


def is_async(function: Any) -> bool:
    """Return whether a call gives a coroutine: of an async function, or of an object with an async `__call__`."""
    try:
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    except TypeError:  # a mock shows another mock in place of its code
        return False


def check_takes_one(function: Any, name: str, given: str, *, may_await: bool = False) -> None:
    """Check that a function can be called with one argument.

    Args:
        function: the function.
        name: the setting, for the error.
        given: the argument, for the error: "a Request".
        may_await: may it be async. The result of a call that is not awaited is true, whatever the function returns.

    Raises:
        ConfigError: it is no function, takes no argument, needs more than one, or is async.
    """
    if not callable(function):
        kind = "function" if may_await else "plain function"
        raise ConfigError(f"{name} must be a {kind} that takes {given}, got {shown(function)}")
    check_takes(function, name, given)
    if not may_await and is_async(function):
        raise ConfigError(f"{name} must be a plain function, got the async function {call_text(function)}")


def check_dedup(given: Any, kind: type[T], name: str) -> T:
    """Return a gate, if it is a `Dedup` of this kind; see `wrong_type`.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(given, kind):
        raise wrong_type(given, name, f"{kind.__module__.removesuffix('.gateway')}.{kind.__name__}")
    return given


def wrong_type(given: object, name: str, wanted: str) -> ConfigError:
    """Return the error for a value of a wrong type.

    Args:
        given: the value; the message shows only its type, because it may be a URL with a password.
        name: the argument, and the call that takes it.
        wanted: the class.
    """
    kind = "None" if given is None else f"{type(given).__module__}.{named(given)}"
    return ConfigError(f"{name} must be a {wanted}, got {kind}")


def check_flag(value: Any, name: str) -> bool:
    """Return a value that is True or False, or raise ConfigError naming it: a number there is a mistake."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, got {shown(value)}")
    return value


def check_place(value: Any, name: str, what: str = "a name") -> str:
    """Return the name of a place at a broker, or raise ConfigError naming the argument: "" means another place."""
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name} must be {what}, got {value!r}")
    return value


def check_count(value: Any, name: str, *, least: int = 1, most: int | None = None) -> int:
    """Return a whole number of at least `least` and at most `most`, or raise ConfigError naming it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {shown(value)}")
    if most is not None and value > most:
        raise ConfigError(f"{name} must be at most {most}, got {shown(value)}")
    return value


def seconds_of(value: Any) -> Any:
    """Return the seconds of a timedelta, and any other value unchanged."""
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


def check_wait(value: Any, default: float = 0.0, *, least: float = 0.0) -> float:
    """Return the seconds of `wait=`; None is the default of the API that the caller used.

    Raises the ConfigError of `check_seconds`.
    """
    return default if value is None else check_seconds(value, "wait", least=least)


def milliseconds(value: Any, name: str) -> int:
    """Return a length of time above zero as whole milliseconds, rounded up: a lease never ends early.

    Raises the ConfigError of `check_seconds`.
    """
    return max(1, math.ceil(check_seconds(value, name) * 1000 - _NOISE))


def check_fail_on(given: Any) -> None:
    """Check the types of exceptions that `once` records: else the first exception would end in a TypeError.

    Raises:
        ConfigError: it is no exception class, and no tuple of them.
    """
    each_one = given if isinstance(given, tuple) else (given,)
    for each in each_one:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise ConfigError(
                f"fail_on must be a tuple of exception classes, such as (Declined,), got {shown(each)}"
            )
