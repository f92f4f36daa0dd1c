"""`@dedup.once`: a decorator that runs an async function once for each key."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from .admin.resolving import check_resolve
from .arguments import CallRules
from .checks import check_decorated, check_fail_on
from .claiming import claim_call
from .core.gate import Gate
from .core.options import ClaimOptions
from .errors import ConfigError
from .results.declared import LostResult, Results

P = ParamSpec("P")
T = TypeVar("T")
FewArguments = Callable[[], T] | Callable[[Any], T] | Callable[[Any, Any], T] | Callable[[Any, Any, Any], T]
"""A function of up to three arguments: the form of a lambda from which a checker learns the arguments."""


def once(
    gate: Gate,
    options: ClaimOptions,
    rules: CallRules,
    fail_on: tuple[type[Exception], ...],
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Return the decorator.

    The first call runs the function and completes the key with its result. A later call returns that result, with the
    type that the function declares; see `Results`. A call while the first call runs raises InProgressError (after
    `wait`); a call with another fingerprint raises MismatchError.

    An exception releases the key, so that a retry runs the function again. An exception of a type in `fail_on` is
    recorded, and later calls raise FailedError. So they do, for as long as a success is remembered, if duplicates
    cannot get the result: the function's effect has happened, and must not happen again. The first caller gets his
    result with a warning, or the error of a codec of his own, or ResultTooLargeError.

    Raises:
        ConfigError: `fail_on` is no tuple of exception classes; `resolve` is no function of a Takeover; the function
            is not async; its declared type cannot come back; or the function of the key or the fingerprint is not a
            function, is async, or cannot take the arguments of the decorated function.
    """
    check_fail_on(fail_on)
    if options.resolve is not None:
        check_resolve(options.resolve)
    settings = gate.settings

    def decorate(function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        check_decorated(function)
        if not inspect.iscoroutinefunction(function):
            raise ConfigError(
                f"once() decorates async functions, got {function!r}: write async def, or use fastdedup.sync"
            )
        key_and_mark = rules.of(function)
        gate.connections.common.decorated.tell(function, rules, settings.namespace)
        results = Results(function, settings.codec)

        @functools.wraps(function)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            if not results.are_known:
                results.prepare()
            key, mark = key_and_mark(args, kwargs)
            async with claim_call(gate, options, key, mark) as first:
                if not first.acquired:
                    return first.replay(results.typed)  # type: ignore[no-any-return]
                try:
                    result = await function(*args, **kwargs)
                except fail_on as error:
                    await first.fail(error)
                    raise
                first.settlement.note_done()
                kept = results.kept(result)
                if type(kept) is LostResult:
                    await kept.record(first.settlement)
                    kept.warn()
                else:  # a result that cannot be stored is recorded as a failure on leaving
                    await first.complete(kept)
                return result

        return wrapper

    return decorate
