"""Hears which watched keys were freed: one subscription a process, however many wait.

Pub/sub delivers at most once, and nothing while disconnected. So each (re)connection reports
`None`, upon which every waiter looks again; and waiters set their own alarm for the lease's end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from .link import Link, pack

CHANNEL = "fastdedup:settled"
_PAUSE = 0.2
"""Seconds between attempts to subscribe again."""

OnFreed = Callable[[bytes | None], None]


class Listener:
    """Keeps one subscription alive while the store is open."""

    def __init__(self, connect: Callable[[Callable[[Any], None]], Awaitable[Link]]) -> None:
        self._connect = connect
        self._task: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[Link] | None = None

    async def start(self, on_freed: OnFreed) -> None:
        """Return once subscribed; at once where it was before. Concurrent callers share one attempt."""
        if self._task is not None:
            return
        if self._starting is None:
            self._starting = asyncio.create_task(self._subscribe(on_freed), name="fastdedup-subscribe")
            self._starting.add_done_callback(lambda task: self._started(task, on_freed))
        await asyncio.shield(self._starting)

    async def aclose(self) -> None:
        """Stop listening."""
        tasks = [task for task in (self._starting, self._task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _started(self, task: asyncio.Task[Link], on_freed: OnFreed) -> None:
        self._starting = None
        if not task.cancelled() and task.exception() is None:
            self._task = asyncio.create_task(self._run(task.result(), on_freed), name="fastdedup-listener")

    async def _run(self, link: Link, on_freed: OnFreed) -> None:
        try:
            while True:
                await asyncio.shield(link.closed)
                on_freed(None)
                link = await self._again(on_freed)
                on_freed(None)
        finally:
            link.abort("no longer listening")

    async def _again(self, on_freed: OnFreed) -> Link:
        while True:
            await asyncio.sleep(_PAUSE)
            try:
                return await self._subscribe(on_freed)
            except Exception:  # noqa: BLE001 -- whatever it is, waiters go on by their alarms until it ends
                continue

    async def _subscribe(self, on_freed: OnFreed) -> Link:
        def on_push(message: Any) -> None:
            if isinstance(message, list) and message[:1] == [b"message"]:
                on_freed(message[2])

        link = await self._connect(on_push)
        reply = await link.send(pack("SUBSCRIBE", CHANNEL))
        if isinstance(reply, Exception):
            link.abort("cannot subscribe")
            raise reply
        return link
