"""`@dedup.once` for synchronous code: a function runs once for each key."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from ..checks import check_arguments_rule, shown
from ..core.options import ClaimOptions
from ..errors import ConfigError, UsageError
from ..gateway import Dedup as AsyncDedup
from .background import Bound
from .claiming import claim_now

P = ParamSpec("P")
T = TypeVar("T")


def check_blocking(function: Callable[..., Any], otherwise: str) -> None:
    """Check that a function does its work as it is called; `otherwise`: what async functions are for.

    Raises:
        ConfigError: it is async, or a generator: calling it would do nothing.
    """
    for called in (function, getattr(type(function), "__call__", None)):  # noqa: B004 -- of an object that is called
        if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
            raise ConfigError(f"{function!r} is async: use {otherwise}")
        if inspect.isgeneratorfunction(called):
            raise ConfigError(f"{function!r} is a generator, whose calls do no work: let it return a list")


def check_done(function: Callable[..., Any], result: object) -> None:
    """Check that a function has done its work.

    Raises:
        UsageError: it has returned a coroutine or a generator, which no code has run.
    """
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
    elif not inspect.isasyncgen(result):
        return
    raise UsageError(f"{function!r} returned a {shown(result)}, which nobody has run: its work is not done")


def once(
    bound: Bound[AsyncDedup],
    options: ClaimOptions,
    key: Callable[..., str],
    fingerprint: Callable[..., Any] | None,
    fail_on: tuple[type[Exception], ...],
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that does for functions what `fastdedup.Dedup.once` does for async functions.

    Raises:
        ConfigError: the function is async, or the function of the key or of the fingerprint is none, or async,
            or cannot take the arguments of the decorated function.
    """
    if not callable(key) or inspect.iscoroutinefunction(key):
        raise ConfigError(
            f"once(key=…) must be a function, not async, that returns the key's text, got {key!r}"
        )

    if fingerprint is not None and (not callable(fingerprint) or inspect.iscoroutinefunction(fingerprint)):
        raise ConfigError(f"once(fingerprint=…) must be a function, not async, got {fingerprint!r}")

    settings = bound.latest.settings

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        check_blocking(function, "once() of fastdedup.Dedup")
        check_arguments_rule(key, function, "once(key=…)")
        if fingerprint is not None:
            check_arguments_rule(fingerprint, function, "once(fingerprint=…)")
        bound.per_process.decorated.tell(function, key, settings.namespace, settings.codec)

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            mark = None if fingerprint is None else fingerprint(*args, **kwargs)
            with claim_now(bound, options, key(*args, **kwargs), mark) as first:
                if not first.acquired:
                    return first.replay()  # type: ignore[no-any-return]
                try:
                    result = function(*args, **kwargs)
                except fail_on as error:
                    first.fail(error)
                    raise
                check_done(function, result)
                first.complete(result)  # if that cannot be stored, leaving records it as a failure
                return result

        return wrapper

    return decorate
