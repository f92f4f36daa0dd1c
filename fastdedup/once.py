"""`@dedup.once`: a decorator that runs an async function once for each key."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from .checks import check_arguments_rule
from .claiming import claim_call
from .core.gate import Gate
from .core.options import ClaimOptions
from .errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")
FewArguments = Callable[[], T] | Callable[[Any], T] | Callable[[Any, Any], T] | Callable[[Any, Any, Any], T]
"""A function of up to three arguments: the form of a lambda by which a checker knows what it is called with."""


def once(
    gate: Gate,
    options: ClaimOptions,
    key: Callable[..., str],
    fingerprint: Callable[..., Any] | None,
    fail_on: tuple[type[Exception], ...],
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Return the decorator.

    The first call runs the function and completes the key with its result. A later call returns that result, in the
    form that the codec decodes. A call while the first call runs raises InProgressError (after `wait`); a call with
    another fingerprint raises MismatchError.

    An exception releases the key, so that a retry runs the function again. An exception of a type in `fail_on` is
    recorded, and later calls raise FailedError. If a result cannot be stored (ResultError, ResultTooLargeError),
    later calls raise FailedError for as long as a success is remembered: the function's effect has happened, and must
    not happen again.

    Raises:
        ConfigError: the function is not async, or the function of the key or of the fingerprint is none, or async,
            or cannot take the arguments of the decorated function.
    """
    if not callable(key) or inspect.iscoroutinefunction(key):
        raise ConfigError(
            f"once(key=…) must be a sync function that returns the key's text, got {key!r}: "
            "for example key=lambda order: order.id"
        )

    if fingerprint is not None and (not callable(fingerprint) or inspect.iscoroutinefunction(fingerprint)):
        raise ConfigError(f"once(fingerprint=…) must be a function, not async, got {fingerprint!r}")

    settings = gate.settings

    def decorate(function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        if not inspect.iscoroutinefunction(function):
            raise ConfigError(
                f"once() decorates async functions, got {function!r}: write async def, or use fastdedup.sync"
            )
        check_arguments_rule(key, function, "once(key=…)")
        if fingerprint is not None:
            check_arguments_rule(fingerprint, function, "once(fingerprint=…)")
        gate.connections.common.decorated.tell(function, key, settings.namespace, settings.codec)

        @functools.wraps(function)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            mark = None if fingerprint is None else fingerprint(*args, **kwargs)
            async with claim_call(gate, options, key(*args, **kwargs), mark) as first:
                if not first.acquired:
                    return first.replay()  # type: ignore[no-any-return]
                try:
                    result = await function(*args, **kwargs)
                except fail_on as error:
                    await first.fail(error)
                    raise
                await first.complete(
                    result
                )  # a result that cannot be stored is recorded as a failure on leaving
                return result

        return wrapper

    return decorate
