"""How one flow serves sync and async views: it is written as a coroutine, over one of two bridges.

Over `BLOCKING` nothing in it ever suspends, so `drive` runs it to its end in one go, without an event loop.
Over `AWAITING` it is awaited, and blocks no loop: the gate lives in a background thread (`fastdedup.sync`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from inspect import isawaitable
from typing import Any, Protocol, TypeVar

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async

from ...events import log
from ...sync.background import BackgroundDedup

T = TypeVar("T")
Discard = Callable[[T], None]


class Bridge(Protocol):
    """What a flow does beyond itself."""

    async def run(
        self,
        background: BackgroundDedup,
        make: Callable[[], Awaitable[T]],
        seconds: float,
        discard: Discard[T] | None = None,
    ) -> T:
        """Do something with the gate, in its thread."""

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function of the application's, sync or async, which may use its database."""

    async def view(self, view: Callable[[], Any]) -> Any:
        """Run a view, or what else returns a response; of this bridge's kind."""

    async def finish(self, work: Coroutine[Any, Any, T], unsent: Callable[[T], Awaitable[None]]) -> T:
        """Do some work to its end, even if the client leaves; then its result goes to `unsent`."""


class Blocking:
    """For synchronous code."""

    async def run(
        self,
        background: BackgroundDedup,
        make: Callable[[], Awaitable[T]],
        seconds: float,
        discard: Discard[T] | None = None,
    ) -> T:
        """Block this thread."""
        return background.run(make, seconds, discard)

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call it here; what it returns is awaited in a loop of its own."""
        value = function(*args)
        return async_to_sync(_awaited)(value) if isawaitable(value) else value

    async def view(self, view: Callable[[], Any]) -> Any:
        """Run it here."""
        return view()

    async def finish(self, work: Coroutine[Any, Any, T], unsent: Callable[[T], Awaitable[None]]) -> T:
        """A thread is not interrupted by a client that leaves."""
        return await work


class Awaiting:
    """For asynchronous code, in any event loop."""

    async def run(
        self,
        background: BackgroundDedup,
        make: Callable[[], Awaitable[T]],
        seconds: float,
        discard: Discard[T] | None = None,
    ) -> T:
        """Await the other thread."""
        return await background.arun(make, seconds, discard)

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call it in the thread that Django keeps for what is synchronous."""
        if iscoroutinefunction(function):
            return await function(*args)
        value = await sync_to_async(function)(*args)
        return await value if isawaitable(value) else value

    async def view(self, view: Callable[[], Any]) -> Any:
        """Await it."""
        return await view()

    async def finish(self, work: Coroutine[Any, Any, T], unsent: Callable[[T], Awaitable[None]]) -> T:
        """Django cancels a request whose client has left: that is put off until the work is done."""
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await _done(task)
            if not task.cancelled():
                await _done(asyncio.ensure_future(_to_its_end(task, unsent)))
            raise


BLOCKING: Bridge = Blocking()
AWAITING: Bridge = Awaiting()


def drive(flow: Coroutine[Any, Any, T]) -> T:
    """Run a flow over `BLOCKING`."""
    try:
        flow.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    flow.close()
    raise RuntimeError("a flow of synchronous code waited for an event loop")


async def _done(task: asyncio.Task[Any]) -> None:
    """Wait for a task, whoever cancels that."""
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task])


async def _to_its_end(task: asyncio.Task[T], unsent: Callable[[T], Awaitable[None]]) -> None:
    try:
        await unsent(task.result())
    except Exception:  # noqa: BLE001 -- logged: nobody else is there to be told
        log.exception("a view failed after its client had left")


async def _awaited(value: Awaitable[T]) -> T:
    return await value
