"""Hears which watched keys were freed: one subscription for all waiters of a store.

Pub/sub delivers a message at most once, and loses it while the subscriber is not connected. So each (re)connection
reports `None`, after which every waiter asks again. Waiters also set a timer of their own for the lease's end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from .connection import RedisConnection, stop
from .scripts import pack

CHANNEL = "fastdedup:settled"
_PAUSE = 0.2
"""Seconds between attempts to subscribe again."""
_QUIET = 1.0
"""Seconds of silence after which a PING is sent, and seconds within which the server must answer it."""

OnFreed = Callable[[bytes | None], None]
Connect = Callable[[Callable[[Any], None]], Awaitable[RedisConnection]]


async def _no_look() -> None:
    """Do nothing: the messages come as long as the server answers."""


class Listener:
    """Keeps one subscription alive while the store is open.

    Args:
        connect: connects to a server that gets the messages.
        timeout: seconds in which the server must answer SUBSCRIBE.
        channel: what it subscribes to; each message of it is passed to `on_freed`.
        look: called each second while subscribed. It calls `leave` where the server gets the messages no more.
    """

    def __init__(
        self,
        connect: Connect,
        timeout: float,
        *,
        channel: str = CHANNEL,
        look: Callable[[], Awaitable[None]] = _no_look,
    ) -> None:
        self._connect = connect
        self._timeout = timeout
        self._channel = channel
        self._look = look
        # Mutable: the connection that is subscribed, or the last that was.
        self.connection: RedisConnection | None = None
        # Mutable: the task that listens; a future that is done once it has subscribed; whether the server has sent
        # anything in the present interval; was it closed, for good.
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._heard = False
        self._closed = False

    async def start(self, on_freed: OnFreed) -> None:
        """Subscribe, and return when that is done; at once where it is subscribed. Callers share one attempt."""
        if self._closed:
            raise ConnectionError("the store was closed")
        if self._task is None or self._task.done() or self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run(on_freed, self._ready), name="fastdedup-listener")
        await asyncio.shield(self._ready)

    def leave(self, reason: str) -> None:
        """Drop the connection, so that a new subscription is made."""
        if self.connection is not None:
            self.connection.abort(reason)

    async def aclose(self) -> None:
        """Stop listening, for good: a waiter may begin to listen at this very moment."""
        self._closed = True
        if self._task is not None:
            await stop(self._task)
        if self._ready is not None:
            _fail(self._ready, ConnectionError("the store was closed"))

    async def _run(self, on_freed: OnFreed, ready: asyncio.Future[None]) -> None:
        try:
            connection = await self._subscribe(on_freed)
        except Exception as error:  # noqa: BLE001 -- the callers of `start` get it and translate it
            _fail(ready, error)
            return
        ready.set_result(None)
        try:
            while True:
                await self._until_ended(connection)
                on_freed(None)
                connection = await self._again(on_freed)
                on_freed(None)
        finally:
            connection.abort("no longer listening")

    async def _until_ended(self, connection: RedisConnection) -> None:
        """Return once the connection has ended, also by a frozen server or a cut cable, which send no sign of it."""
        while not connection.closed.done():
            self._heard = False
            await asyncio.wait([connection.closed], timeout=_QUIET)
            if not self._heard:
                connection.post(pack("PING"))
                await asyncio.wait([connection.closed], timeout=_QUIET)
            if not self._heard:
                connection.abort("the subscription gives no sign of life")
                return
            await self._look()

    async def _again(self, on_freed: OnFreed) -> RedisConnection:
        while True:
            await asyncio.sleep(_PAUSE)
            try:
                return await self._subscribe(on_freed)
            except Exception:  # noqa: BLE001 -- whatever the error, until then the waiters rely on their timers
                continue

    async def _subscribe(self, on_freed: OnFreed) -> RedisConnection:
        def on_push(message: Any) -> None:
            self._heard = True
            if isinstance(message, list) and message[:1] == [b"message"]:
                on_freed(message[2])

        connection = await self._connect(on_push)
        try:
            async with asyncio.timeout(self._timeout):
                reply = await connection.send(pack("SUBSCRIBE", self._channel))
            if isinstance(reply, Exception):
                raise reply
        except BaseException:
            connection.abort("cannot subscribe")
            raise
        self.connection = connection
        return connection


def _fail(ready: asyncio.Future[None], error: Exception) -> None:
    if not ready.done():
        ready.set_exception(error)
        ready.exception()  # marks it as retrieved: the callers of `start` may have been cancelled
