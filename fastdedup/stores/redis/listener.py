"""Hears which watched keys were freed: one subscription for all waiters of a store.

Pub/sub delivers a message at most once, and loses it while the subscriber is not connected. So each loss of the
connection and each reconnection reports `None`, and then every waiter asks again. Each waiter also asks again whether
the store listens: `start` raises while there is no subscription. Waiters set their own timer for the lease's end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ...backoff import Backoff
from ...tasks import Crowd, patience, stop
from .connection import RedisConnection
from .scripts import pack

CHANNEL = "fastdedup:settled"
_PAUSE = 0.2
"""Seconds from a lost subscription, or from a first attempt that failed, to the next attempt."""
_LONGEST_PAUSE = 1.0
"""Seconds to which the pause grows. It is short: ten thousand waiters ask 40,000 times a second until then."""
_QUIET = 1.0
"""Seconds of silence after which a PING is sent, and seconds within which the server must answer it."""

OnFreed = Callable[[bytes | None], None]
Connect = Callable[[Callable[[Any], None]], Awaitable[RedisConnection]]


def _is_cancelled() -> bool:
    """True if this task was cancelled: an event loop cancels it once at its end, and a client may lose that."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _no_look() -> None:
    """Do nothing: the messages come as long as the server answers."""


class Listener:
    """Keeps one subscription alive while the store is open.

    Args:
        connect: connects to a server that gets the messages.
        timeout: seconds in which the server must answer SUBSCRIBE.
        channel: the channel to subscribe to; `on_freed` gets each of its messages.
        longest_pause: seconds to which the pause between two attempts grows while no subscription can be made.
        look: called each second while subscribed. It calls `leave` if the server no longer gets the messages.
    """

    def __init__(
        self,
        connect: Connect,
        timeout: float,
        *,
        channel: str = CHANNEL,
        longest_pause: float = _LONGEST_PAUSE,
        look: Callable[[], Awaitable[None]] = _no_look,
    ) -> None:
        self._connect = connect
        self._timeout = timeout
        self._subscription = pack("SUBSCRIBE", channel)
        self._backoff = Backoff(_PAUSE, longest_pause, growth=2.0, steady=1.0)
        self._look = look
        # Mutable: the connection that is subscribed, or the last that was.
        self.connection: RedisConnection | None = None
        # Mutable: the task that listens; whether it has tried to subscribe, and the error if it is not subscribed;
        # whether the server has sent anything in the present interval; whether it was closed for good.
        self._task: asyncio.Task[None] | None = None
        self._tried = False
        self._fault: Exception | None = None
        self._heard = False
        self._closed = False
        self._first_callers = Crowd()

    async def start(self, on_freed: OnFreed) -> None:
        """Return if it is subscribed. The first callers wait for the first attempt, which they share.

        Raises:
            Exception: it is not subscribed; the error is the reason. It tries again until it is closed.
        """
        if self._closed:
            raise ConnectionError("the store was closed")
        if self._task is None or self._task.done():
            self._tried = False
            self._task = asyncio.create_task(self._run(on_freed), name="fastdedup-listener")
        while not self._tried:
            await self._first_callers.wait()
        if self._fault is not None:
            raise self._fault.with_traceback(None)

    def leave(self, reason: str) -> None:
        """Drop the connection, so that a new subscription is made."""
        if self.connection is not None:
            self.connection.abort(reason)

    async def aclose(self) -> None:
        """Stop listening, for good: a waiter may begin to listen at this very moment."""
        self._closed = True
        if self._task is not None:
            await stop(self._task)
        self._tell(ConnectionError("the store was closed"))

    async def _run(self, on_freed: OnFreed) -> None:
        pauses = 0
        try:
            while not _is_cancelled():
                try:
                    self.connection = connection = await self._subscribe(on_freed)
                except Exception as error:  # noqa: BLE001 -- the callers of `start` get it and translate it
                    self._tell(error)
                    await asyncio.sleep(self._backoff.pause(pauses))
                    pauses += 1
                    continue
                if self._tell(None):
                    on_freed(None)
                await self._until_ended(connection)
                self._tell(ConnectionError("the subscription to news of freed keys was lost"))
                on_freed(None)
                pauses = 0
                await asyncio.sleep(_PAUSE)
        finally:
            if self.connection is not None:
                self.connection.abort("no longer listening")

    def _tell(self, fault: Exception | None) -> bool:
        """Let `start` return from now on, or raise this error. True if it did so before: news may have been lost."""
        again = self._tried
        self._tried, self._fault = True, fault
        self._first_callers.wake()
        return again

    async def _until_ended(self, connection: RedisConnection) -> None:
        """Return once the connection has ended. A frozen server or a cut cable, which give no sign, count too."""
        while not connection.closed.done() and not _is_cancelled():
            self._heard = False
            await asyncio.wait([connection.closed], timeout=_QUIET)
            if not self._heard:
                connection.post(pack("PING"))
                await asyncio.wait([connection.closed], timeout=_QUIET)
            if not self._heard:
                connection.abort("the subscription gives no sign of life")
                return
            await self._look()

    async def _subscribe(self, on_freed: OnFreed) -> RedisConnection:
        def on_push(message: Any) -> None:
            self._heard = True
            self._take(connection, message, on_freed)

        connection = await self._connect(on_push)
        try:
            async with asyncio.timeout(await patience(self._timeout)):
                reply = await connection.send(self._subscription)
            if isinstance(reply, Exception):
                raise reply
        except BaseException:
            connection.abort("cannot subscribe")
            raise
        return connection

    def _take(self, connection: RedisConnection, message: Any, on_freed: OnFreed) -> None:
        """Take a message that came without being asked for."""
        if isinstance(message, list) and message[:1] == [b"message"]:
            on_freed(message[2])
