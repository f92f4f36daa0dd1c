"""`@dedup.once`: an async function that runs once per key."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from .claim import Claim
from .errors import (
    ConfigError,
    DedupError,
    FailedError,
    InProgressError,
    MismatchError,
    ResultError,
    ResultTooLargeError,
)
from .model import Outcome

if TYPE_CHECKING:
    from .gateway import Dedup

P = ParamSpec("P")
T = TypeVar("T")


def once(
    dedup: Dedup,
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
            async with dedup.claim(key(*args, **kwargs), fingerprint=mark, **options) as claim:
                if not claim.acquired:
                    return replay(claim)  # type: ignore[no-any-return]
                try:
                    result = await function(*args, **kwargs)
                except fail_on as error:
                    await claim.fail(error)
                    raise
                try:
                    await claim.complete(result)
                except (ResultError, ResultTooLargeError) as error:
                    # The effect has happened: a retry must not run it again for want of its result.
                    await claim.fail({"type": type(error).__name__, "message": "the result cannot be stored"})
                    raise
                return result

        return wrapper

    return decorate


def replay(claim: Claim) -> Any:
    """Return the first result, or raise what the outcome means for a caller who wants one."""
    match claim.outcome:
        case Outcome.SUCCEEDED:
            return claim.result
        case Outcome.FAILED:
            raise FailedError(f"the first run of {claim.key!r} failed: {claim.error!r}", error=claim.error)
        case Outcome.IN_PROGRESS:
            after = claim.retry_after or 0.0
            raise InProgressError(f"{claim.key!r} is in progress elsewhere", retry_after=after)
        case Outcome.MISMATCH:
            raise MismatchError(f"{claim.key!r} was used before with another fingerprint")
    raise DedupError(f"unexpected outcome {claim.outcome}")
