"""The only way in which async tests wait: for a predicate to come true. `programs.until` is for code that blocks."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext, suppress
from typing import Any, TypeVar

import pytest

from fastdedup import BreakerState, Claim, Dedup, UnavailableError

T = TypeVar("T")


async def wait_until(
    predicate: Callable[[], Any], *, description: str | Callable[[], str], deadline: float = 20.0
) -> Any:
    """Return what the predicate, plain or async, returns once that is true."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + deadline
    while loop.time() < ends:
        value = predicate()
        if inspect.isawaitable(value):
            value = await value
        if isinstance(value, Claim) or value:  # a claim has no truth value
            return value
        await asyncio.sleep(0.002)
    said = description if isinstance(description, str) else description()
    raise AssertionError(f"waited {deadline:g} s in vain: {said}")


async def is_renewed(left: Callable[[], Any], *, times: int = 7) -> None:
    """Return once a time that is left was renewed so many times: each third of it, so seven outlast two leases."""
    seen: list[float] = []

    async def is_over() -> bool:
        value = left()
        return renewals(seen, await value if inspect.isawaitable(value) else value) >= times

    await wait_until(is_over, description=f"it is renewed {times} times")


def renewals(seen: list[float], left: float) -> int:
    """Note the store's figure of a time that is left, which falls by itself; return how often it has risen."""
    seen.append(left)
    return sum(later > earlier for earlier, later in itertools.pairwise(seen))


async def acquired(
    dedup: Dedup, key: str, *, deadline: float = 20.0, is_away: bool = False, **options: Any
) -> Claim:
    """Claim a key until it is acquired, as another caller does; return the claim. `is_away`: the store may be."""

    async def claimed() -> Claim | None:
        with suppress(UnavailableError) if is_away else nullcontext():
            claim = await dedup.claim(key, **options)
            return claim if claim.acquired else None
        return None

    claim: Claim = await wait_until(claimed, description=f"{key} is acquired", deadline=deadline)
    return claim


async def breaker_opens(dedup: Dedup, key: str = "") -> None:
    """Claim until a breaker is open: new keys, or one, for the breaker of its part of the store."""
    numbers = itertools.count()

    async def is_open() -> bool:
        with suppress(UnavailableError):
            await dedup.claim(key or f"notices {next(numbers)}")
        return dedup.breaker is not BreakerState.CLOSED

    await wait_until(is_open, description="the breaker opens")


async def lease_of(dedup: Dedup, key: str) -> float:
    """Return the seconds that are left of the lease of a key."""
    record = await dedup.get(key)
    assert record is not None
    assert record.lease is not None
    return record.lease


async def abandoned(dedup: Dedup, key: str, *, lease: float = 0.02, **options: Any) -> Claim:
    """Return the claim of an owner that died: its lease has ended."""
    claim = await dedup.claim(key, lease=lease, **options)

    async def over() -> bool:
        return await lease_of(dedup, key) < -0.002

    await wait_until(over, description="the lease ends")
    return claim


async def cancel(task: asyncio.Future[Any]) -> None:
    """Cancel a task, which must end by it."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def in_its_body(dedup: Dedup, key: str) -> asyncio.Task[None]:
    """Return a task that holds a key in a body which does not end by itself."""
    inside = asyncio.Event()

    async def work() -> None:
        async with dedup.claim(key):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    return task


def run(work: Callable[[], Coroutine[Any, Any, Any]], loop: Any = None) -> Any:
    """Run an event loop from its beginning to its end, as a plugin runs one async test."""
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(work())


async def is_answered(call: Awaitable[Any]) -> bool:
    """Return whether the store answers a call."""
    try:
        await call
    except UnavailableError:
        return False
    return True


async def answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Call until the store answers, like a client after a 503; return its answer."""
    answers: list[T] = []

    async def asked() -> bool:
        with suppress(UnavailableError):
            answers.append(await ask())
        return bool(answers)

    await wait_until(asked, description="the store answers")
    return answers[0]
