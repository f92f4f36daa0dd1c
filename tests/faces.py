"""One test for asyncio and for synchronous code, which a thread of its own calls: so each is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial, wraps
from inspect import isawaitable, iscoroutinefunction
from typing import Any
from weakref import WeakSet

import pytest

from fastdedup import Dedup
from fastdedup.sync import Dedup as SyncDedup

each_face = pytest.mark.parametrize("face", ["asyncio", "synchronous"])


@asynccontextmanager
async def gate_of(face: str, *args: Any, **options: Any) -> AsyncIterator[Any]:
    """Open a gate of this face."""
    if face == "asyncio":
        async with Dedup(*args, **options) as dedup:
            yield dedup
    else:
        with SyncDedup(*args, **options) as dedup:
            yield dedup


def once_of(
    face: str, once: Callable[[Any], Callable[..., Any]], work: Callable[..., Any]
) -> Callable[..., Awaitable[Any]]:
    """Decorate work by what `once()` of a gate or an inbox of this face returned."""
    if face == "synchronous":
        return partial(asyncio.to_thread, once(work))

    @wraps(work)
    async def asynchronous(*args: Any, **options: Any) -> Any:
        return work(*args, **options)

    return once(asynchronous)


async def told(answer: Any) -> Any:
    """Return the answer of a call of either face: synchronous code has it at once."""
    return await answer if isawaitable(answer) else answer


# An object of `fastdedup.sync` in the place of its asynchronous twin

PLAIN = {"downstream", "ledger", "machine", "replay", "scoped"}
"""Methods that the asynchronous twins have as plain functions, too."""
_WITH_THREADS = WeakSet[asyncio.AbstractEventLoop]()


class Awaited:
    """An object of synchronous code whose calls are awaited: each one blocks a thread of its own."""

    def __init__(self, synchronous: Any) -> None:
        self.synchronous = synchronous

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.synchronous, "close" if name == "aclose" else name)
        if not callable(value) or isinstance(value, type):
            return awaited(value)
        return partial(_call_now if name in PLAIN else Call, value)

    def once(self, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Awaitable[Any]]]:
        decorate = self.synchronous.once(**{name: given(value) for name, value in options.items()})

        def decorated(work: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
            blocking = decorate(given(work))
            return wraps(blocking)(partial(asyncio.to_thread, blocking))

        return decorated

    async def __aenter__(self) -> Awaited:
        loop = asyncio.get_running_loop()
        if loop not in _WITH_THREADS:
            _WITH_THREADS.add(loop)
            loop.set_default_executor(ThreadPoolExecutor(100))  # more than the calls of a test that wait
        return await Call(self.synchronous.__enter__)  # type: ignore[no-any-return]

    async def __aexit__(self, *error: object) -> None:
        await Call(self.synchronous.__exit__, *error)


class Call:
    """A call that is awaited, or entered by `async with` if it returns a claim or a lock."""

    def __init__(self, function: Callable[..., Any], *args: Any, **options: Any) -> None:
        self._function = function
        self._args = map(given, args)
        self._options = {name: given(value) for name, value in options.items()}

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._run().__await__()

    async def _run(self) -> Any:
        return awaited(await asyncio.to_thread(self._function, *self._args, **self._options))

    async def __aenter__(self) -> Any:
        self._block = (await self).synchronous
        return await Call(self._block.__enter__)

    async def __aexit__(self, *error: object) -> Any:
        return await Call(self._block.__exit__, *error)


def _call_now(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return awaited(function(*map(given, args), **options))


def awaited_gate(face: str, *args: Any, **options: Any) -> Any:
    """Return a gate of this face, not open yet, whose calls are awaited."""
    return Dedup(*args, **options) if face == "asyncio" else Awaited(SyncDedup(*args, **options))


def awaited(value: Any) -> Any:
    """Return what a test gets for a value of synchronous code."""
    if type(value).__module__.startswith("fastdedup.sync."):
        return Awaited(value)
    return [awaited(each) for each in value] if type(value) is list else value


def given(value: Any) -> Any:
    """Return what synchronous code gets for a value of a test: an async function runs in the test's loop."""
    if isinstance(value, Awaited):
        return value.synchronous
    if not iscoroutinefunction(value):
        return value
    loop = asyncio.get_running_loop()

    @wraps(value)
    def blocking(*args: Any, **options: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(value(*args, **options), loop).result()

    return blocking
