"""`@dedup.once`: an async function that runs once per key."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from .claims.call import ClaimCall
from .errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")


def once(
    claim: Callable[..., ClaimCall],
    key: Callable[..., str],
    *,
    fingerprint: Callable[..., Any] | None,
    fail_on: tuple[type[Exception], ...],
    options: dict[str, Any],
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Return the decorator.

    The first call runs the function and completes with its result. A later one returns that result,
    as the codec gives it back. A call while the first runs raises InProgressError (after `wait`);
    another fingerprint MismatchError. An exception frees the key, so that a retry runs again; one
    of the types in `fail_on` is recorded, and later calls raise FailedError. So is a result that cannot
    be stored (ResultError, ResultTooLargeError): its effect has happened, and must not happen again.

    Raises:
        ConfigError: the function is not async, or the key function is.
    """
    if not callable(key) or inspect.iscoroutinefunction(key):
        raise ConfigError("once(key=…) takes a sync function that returns the key's text")

    def decorate(function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        if not inspect.iscoroutinefunction(function):
            raise ConfigError(f"once() decorates async functions; {function!r} is none")

        @functools.wraps(function)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            mark = None if fingerprint is None else fingerprint(*args, **kwargs)
            async with claim(key(*args, **kwargs), fingerprint=mark, **options) as first:
                if not first.acquired:
                    return first.replay()  # type: ignore[no-any-return]
                try:
                    result = await function(*args, **kwargs)
                except fail_on as error:
                    await first.fail(error)
                    raise
                await first.complete(result)  # where that cannot be stored, leaving records it as a failure
                return result

        return wrapper

    return decorate
