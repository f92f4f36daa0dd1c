"""`@dedup.once` for synchronous code: a function runs once for each key."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from ..errors import ConfigError
from .claim import Claim

P = ParamSpec("P")
T = TypeVar("T")


def once(
    ask: Callable[..., Claim],
    key: Callable[..., str],
    *,
    fingerprint: Callable[..., Any] | None,
    fail_on: tuple[type[Exception], ...],
    options: dict[str, Any],
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that does for functions what `fastdedup.Dedup.once` does for async functions.

    Raises:
        ConfigError: the function is async, or the function of the key or of the fingerprint is none, or async.
    """
    if not callable(key) or inspect.iscoroutinefunction(key):
        raise ConfigError(
            f"once(key=…) must be a function, not async, that returns the key's text, got {key!r}"
        )

    if fingerprint is not None and (not callable(fingerprint) or inspect.iscoroutinefunction(fingerprint)):
        raise ConfigError(f"once(fingerprint=…) must be a function, not async, got {fingerprint!r}")

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        if inspect.iscoroutinefunction(function):
            raise ConfigError(f"{function!r} is async: use once() of fastdedup.Dedup")

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            mark = None if fingerprint is None else fingerprint(*args, **kwargs)
            with ask(key(*args, **kwargs), fingerprint=mark, **options) as claim:
                if not claim.acquired:
                    return claim.replay()  # type: ignore[no-any-return]
                try:
                    result = function(*args, **kwargs)
                except fail_on as error:
                    claim.fail(error)
                    raise
                claim.complete(result)  # where that cannot be stored, leaving records it as a failure
                return result

        return wrapper

    return decorate
