"""Calls a function at an event loop's end, while the loop can still close connections.

`asyncio.run`, `asyncio.Runner` and all that is built on them (uvicorn, test clients, pytest's plugins) end a loop's
asynchronous generators before they close the loop. So a generator that waits learns of it in time.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

LoopEnd = AsyncGenerator[None, None]
"""Waits for the end of an event loop; `aclose()` is that end for it."""


def at_loop_end(on_end: Callable[[], Awaitable[None]]) -> LoopEnd:
    """Await a function when the running event loop ends. It must not raise.

    Keep the returned object: if it is garbage while the loop runs, the function is awaited then. Its `aclose()`
    awaits the function too, so the function has to check whether there is anything to do.
    """
    waits = _until_the_end(on_end)
    with contextlib.suppress(StopIteration):  # it yields at once, so there is nothing to await
        waits.__anext__().send(None)
    return waits


async def _until_the_end(on_end: Callable[[], Awaitable[None]]) -> LoopEnd:
    try:
        yield
    finally:
        await on_end()
