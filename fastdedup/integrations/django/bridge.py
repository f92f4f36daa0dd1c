"""Lets one coroutine serve sync and async views, over one of two bridges.

Over `BLOCKING` it never suspends, so `web.admit.drive` runs it to its end without an event loop. Over `AWAITING` it
is awaited and blocks no loop, because the `Dedup` is in a background thread (`fastdedup.sync`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Coroutine
from inspect import isawaitable
from typing import Any, ClassVar, Final, TypeVar

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.http import HttpRequest

from ...failures import log
from ...flows import drive
from ...tasks import until_done

T = TypeVar("T")


class Blocking:
    """The steps of a flow that differ between sync and async views, for synchronous code."""

    blocks: ClassVar[bool] = True
    """See `run_in_background`."""

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function of the application, sync or async, here; await its result in a loop of its own."""
        value = function(*args)
        return async_to_sync(_awaited)(value) if isawaitable(value) else value

    async def view(self, view: Callable[[], Any]) -> Any:
        """Run a view, or another function that returns a response, here."""
        return view()

    async def finish(self, work: Coroutine[Any, Any, Any], cancels: Callable[[], bool] = bool) -> Any:
        """Make a response here: a client that leaves does not interrupt a thread."""
        return await work


class Awaiting:
    """The same steps for asynchronous code, in any event loop."""

    blocks: ClassVar[bool] = False

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a sync function in the thread that Django keeps for synchronous code, and may use the database in."""
        if iscoroutinefunction(function):
            return await function(*args)
        value = await sync_to_async(function)(*args)
        return await value if isawaitable(value) else value

    async def view(self, view: Callable[[], Any]) -> Any:
        """Await the view."""
        return await view()

    async def finish(self, work: Coroutine[Any, Any, Any], cancels: Callable[[], bool] = bool) -> Any:
        """Make a response, and delay the cancellation by which Django ends a request whose client has left.

        The response is then rendered or closed, which settles its claim. If `cancels()` is true by then, the work is
        cancelled, too.
        """
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if cancels():
                task.cancel()
            await _done(task)
            if not task.cancelled():
                await _done(asyncio.ensure_future(_to_its_end(task)))
            raise


Bridge = Blocking | Awaiting
BLOCKING: Final = Blocking()
AWAITING: Final = Awaiting()
Flow = Callable[[Bridge, HttpRequest, Callable[[], Any]], Coroutine[Any, Any, Any]]
"""Called with a bridge, the request, and what calls a view; returns a flow for that bridge."""


def is_async(view: Callable[..., Any]) -> bool:
    """True if a view must be awaited, also for the `dispatch` of a class with async handlers."""
    owner = getattr(getattr(view, "func", None), "__self__", None)
    return iscoroutinefunction(view) or bool(getattr(owner, "view_is_async", False))


def over_bridge(function: Callable[..., Any], flow: Flow) -> Callable[..., Any]:
    """Return a function of the same kind, sync or async, that runs a flow around this one, over its bridge."""
    if is_async(function):

        @functools.wraps(function)
        async def awaited(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            return await flow(AWAITING, request, lambda: function(request, *args, **kwargs))

        return awaited

    @functools.wraps(function)
    def called(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return drive(flow(BLOCKING, request, lambda: function(request, *args, **kwargs)))

    return called


async def _done(task: asyncio.Task[Any]) -> None:
    """Wait for a task, also through cancellations."""
    with contextlib.suppress(asyncio.CancelledError):
        await until_done(task)


async def _to_its_end(task: asyncio.Task[Any]) -> None:
    """Render or close a response that will not be sent."""
    try:
        response = task.result()
        ends = response.close if response.streaming else getattr(response, "render", None)
        if callable(ends):
            await sync_to_async(ends)()
    except Exception:  # noqa: BLE001 -- logged, because no caller is left to get it
        log.exception("a view failed after its client had left")


async def _awaited(value: Awaitable[T]) -> T:
    return await value
