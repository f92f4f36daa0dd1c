"""Opens a `Dedup` with the application or at its first use, and closes it if it was opened here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ...errors import DedupError
from ...gateway import Dedup

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class Lifespan:
    """Keeps a `Dedup` open for an application that may have opened it itself, or that has no lifespan."""

    def __init__(self, dedup: Dedup) -> None:
        self._dedup = dedup
        # Mutable: was it opened here.
        self._ours = False

    async def ready(self) -> None:
        """Open it unless it is open in this event loop; a test client may have a loop for each request.

        Raises:
            ConfigError: the store can never be used in its present setup.
            UsageError: it is being closed.
        """
        if not self._dedup.is_open:
            self._ours = True
            await self._dedup.open()  # open at once for all who come while it connects

    async def run(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the application's lifespan through, and open the `Dedup` before the first request.

        It opens after the application's own start, which may open the `Dedup` itself.
        """
        heard = False

        async def hearing() -> Message:
            nonlocal heard
            heard = True
            return await receive()

        async def opening_and_closing(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                await self.ready()
            elif message["type"] != "lifespan.startup.failed":
                await self._close()
            await send(message)

        try:
            await app(scope, hearing, opening_and_closing)
        except Exception:
            if heard:
                raise
        if not heard:
            await self._alone(receive, send)  # an application without a lifespan, such as Django's

    async def _alone(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.ready()
        except DedupError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _close(self) -> None:
        ours, self._ours = self._ours, False
        if ours:
            await self._dedup.aclose()
