"""Says when an event loop ends, while it can still close connections.

`asyncio.run`, `asyncio.Runner` and all that is built on them (uvicorn, test clients, pytest's plugins) end a loop's
asynchronous generators before they close the loop. So a generator that waits learns of it in time.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable


class LoopEnd:
    """Awaits a function when the running event loop ends.

    Where nobody refers to it any more while the loop runs, the function is awaited then.
    """

    def __init__(self, generator: AsyncGenerator[None, None]) -> None:
        self._generator = generator

    @classmethod
    def awaited(cls, on_end: Callable[[], Awaitable[None]]) -> LoopEnd:
        """Begin: from now on `on_end` is awaited when the loop ends. It must not raise."""
        generator = _until_the_end(on_end)
        with contextlib.suppress(StopIteration):  # it yields at once, so nothing is to be awaited
            generator.__anext__().send(None)
        return cls(generator)

    async def forget(self) -> None:
        """End it now. `on_end` is awaited once more, and has to see for itself that nothing is to be done."""
        await self._generator.aclose()


async def _until_the_end(on_end: Callable[[], Awaitable[None]]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await on_end()
