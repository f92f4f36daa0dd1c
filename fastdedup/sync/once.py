"""`@dedup.once` for synchronous code: a function runs once for each key."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ..admin.resolving import check_resolve
from ..arguments import CallRules
from ..checks import check_decorated, check_fail_on, shown, with_article
from ..claim import Claim
from ..core.options import ClaimOptions
from ..errors import ConfigError, UsageError
from ..gateway import Dedup as AsyncDedup
from ..once import P, T
from ..results.declared import LostResult, Results
from .background import Bound
from .claiming import claim_now


def check_blocking(function: Callable[..., Any], otherwise: str) -> None:
    """Check that a function does its work when it is called; `otherwise`: the decorator for async functions.

    Raises:
        ConfigError: it cannot be called; it is async, or a generator: calling it would do nothing.
    """
    check_decorated(function)
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
    kind = with_article(shown(result))
    raise UsageError(f"{function!r} returned {kind}, which was never run: its work is not done")


def once(
    bound: Bound[AsyncDedup],
    options: ClaimOptions,
    rules: CallRules,
    fail_on: tuple[type[Exception], ...],
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator for functions that works like `fastdedup.Dedup.once` for async functions.

    Raises:
        ConfigError: `fail_on` is no tuple of exception classes; `resolve` is no function of a Takeover; the function
            is async; its declared type cannot come back; or the function of the key or the fingerprint is not a
            function, is async, or cannot take the arguments of the decorated function.
    """
    check_fail_on(fail_on)
    if options.resolve is not None:
        check_resolve(options.resolve, asynchronous=False)
    settings = bound.latest.settings

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        check_blocking(function, "once() of fastdedup.Dedup")
        key_and_mark = rules.of(function)
        bound.per_process.decorated.tell(function, rules, settings.namespace)
        results = Results(function, settings.codec)

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            if not results.are_known:
                results.prepare()
            key, mark = key_and_mark(args, kwargs)
            with claim_now(bound, options, key, mark) as first:
                if not first.acquired:
                    return first.replay(results.typed)  # type: ignore[no-any-return]
                try:
                    result = function(*args, **kwargs)
                except fail_on as error:
                    first.fail(error)
                    raise
                check_done(function, result)
                first.asynchronous.settlement.note_done()
                kept = results.kept(result)
                if type(kept) is LostResult:
                    first.say(functools.partial(_record, lost=kept))
                    kept.warn()
                else:  # if that cannot be stored, the end of the block records a failure
                    first.complete(kept)
                return result

        return wrapper

    return decorate


async def _record(claim: Claim, lost: LostResult) -> None:
    await lost.record(claim.settlement)
