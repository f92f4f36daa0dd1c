"""Opens a gate with the application, or when first used; and closes it, where it was opened here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ..gateway import Dedup

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class Lifespan:
    """Whether the gate is open, for an application that may have opened it already, or has no lifespan at all."""

    def __init__(self, dedup: Dedup) -> None:
        self._dedup = dedup
        # Mutable: opened here; one opens at a time.
        self._ours = False
        self._lock = asyncio.Lock()

    async def ready(self) -> None:
        """Open it unless it is open.

        Raises:
            ConfigError: the store can never be used as it is set up.
            UsageError: it was closed.
        """
        if not self._dedup.is_open:
            async with self._lock:
                if not self._dedup.is_open:
                    await self._dedup.open()
                    self._ours = True

    async def run(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the application's lifespan through; the gate is open all through it."""

        async def opening() -> Message:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.ready()
            return message

        async def closing(message: Message) -> None:
            if message["type"].startswith("lifespan.shutdown") and self._ours:
                await self._dedup.aclose()
            await send(message)

        await app(scope, opening, closing)
