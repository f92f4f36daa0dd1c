"""One connection that many batches share: redis-py connects it, a small protocol then sends the batches.

redis-py does the URLs, TLS, AUTH, SELECT and Sentinel's discovery. Afterwards an asyncio.Protocol with a hiredis
reader takes over its socket. Replies come in order, so a batch costs one write, one future and one parse.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import repeat
from types import SimpleNamespace
from typing import Any, cast

import hiredis
from redis.asyncio.connection import AbstractConnection

from ...forking import InChild
from ...kernel.records import MOST_RESULT

OnReply = Callable[[Any], None]
_GOODBYE = 0.5
"""Seconds that the server gets to close the connection properly."""
_AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER: on, with a time of zero."""
MAX_REPLY_BYTES = MOST_RESULT + 1024 * 1024
"""The bytes of a reply that may wait for its end: a record with the largest result has space in it."""


class RedisConnection(asyncio.Protocol):
    """Sends packed commands and delivers their replies in order.

    Errors of the server are delivered as `hiredis.ReplyError` values. When the connection ends, every command without
    a reply fails with ConnectionError: it may or may not have taken effect. Messages that arrive while no command
    waits go to `on_push`: the messages of a subscription.
    """

    process: tuple[str, str] | None = None
    """The server's address, and the id that its process drew when it started. None if the server gave no id."""

    def __init__(self, connection: AbstractConnection, on_push: Callable[[Any], None] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        """Done once the connection has ended."""
        self.gone: asyncio.Future[None] = self._loop.create_future()
        """Done once the socket is closed, a turn of the event loop after `closed`."""
        self.on_unusable: Callable[[RedisConnection], None] | None = None
        """Called once, when the connection can no longer send."""
        self._on_push = on_push
        self._reader = hiredis.Reader()
        self._waiting: deque[OnReply] = deque()
        self._lost: ConnectionError | None = None
        self._finishing = False
        # Kept alive as long as its socket is in use: redis-py closes the socket when this object is collected.
        self._connection = connection
        self._transport = take_transport(connection)
        self._transport.set_protocol(self)
        self._in_child = InChild(self._leave_to_parent)

    @property
    def usable(self) -> bool:
        """False once the connection has ended or is being closed."""
        return self._lost is None and not self._finishing and not self._transport.is_closing()

    @property
    def address(self) -> tuple[str, int] | None:
        """The host and port that it was opened to; None for a Unix socket."""
        connection: Any = self._connection
        return (connection.host, connection.port) if hasattr(connection, "host") else None

    def call(self, packed: bytes, on_reply: OnReply) -> None:
        """Send one command; `on_reply` is called once, with its reply or with a ConnectionError.

        The code that reads the socket calls `on_reply` directly, so it must neither block nor raise.

        Raises:
            ConnectionError: the connection has ended; nothing was sent.
        """
        if self._lost is not None:
            raise ConnectionError(*self._lost.args)
        self._transport.write(packed)  # first: if it raises an error, nothing waits for a reply
        self._waiting.append(on_reply)

    def call_many(self, packed: bytes, count: int, on_replies: Callable[[list[Any]], None]) -> None:
        """Send `count` commands in one write; `on_replies` gets all replies in one list. See also `call`.

        If the connection ended between two replies, the last replies are ConnectionErrors.
        """
        if count == 1:
            self.call(packed, lambda reply: on_replies([reply]))
            return
        if self._lost is not None:
            raise ConnectionError(*self._lost.args)
        replies: list[Any] = []

        def on_last(reply: Any) -> None:
            replies.append(reply)
            on_replies(replies)

        self._transport.write(packed)
        self._waiting.extend(repeat(replies.append, count - 1))
        self._waiting.append(on_last)

    def send_many(self, packed: bytes, count: int) -> asyncio.Future[list[Any]]:
        """Send `count` commands in one write, like `call_many`, and return a future of all replies."""
        future: asyncio.Future[list[Any]] = self._loop.create_future()

        def on_replies(replies: list[Any]) -> None:
            if not future.done():
                future.set_result(replies)

        self.call_many(packed, count, on_replies)
        return future

    def post(self, packed: bytes) -> None:
        """Send a command whose reply goes to `on_push`: PING on a subscription."""
        if self._lost is None:
            self._transport.write(packed)

    def send(self, packed: bytes) -> asyncio.Future[Any]:
        """Send one command and return a future of its reply. It raises ConnectionError like `call`."""
        future = self._loop.create_future()

        def on_reply(reply: Any) -> None:
            if future.done():
                return
            if isinstance(reply, ConnectionError):
                future.set_exception(reply)
            else:
                future.set_result(reply)

        self.call(packed, on_reply)
        return future

    def finish(self) -> None:
        """Close the connection once every sent command has its reply. After this call no command may be sent."""
        self._finishing = True
        self._tell_unusable()
        if not self._waiting and self._lost is None:
            self._end(ConnectionError("the connection was closed"))
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Drop the connection at once; the replies that are still outstanding are lost."""
        if self._loop.is_closed():
            self._drop()
            return
        self._end(ConnectionError(reason))
        forget_unsent(self._transport)
        self._transport.abort()
        self._forget_connection()

    async def aclose(self) -> None:
        """Close the connection after the written data was sent. TLS needs a turn or two of the loop for that."""
        if self._loop.is_closed():
            self._drop()
            return
        self._end(ConnectionError("the connection was closed"))
        self._transport.close()
        await asyncio.wait([self.gone], timeout=_GOODBYE)
        self._transport.abort()
        self._forget_connection()

    def _drop(self) -> None:
        """Close the socket of an event loop that is closed: nothing can be sent there, and no caller waits."""
        self._lost = ConnectionError("the event loop of this connection is closed")
        self.on_unusable = None
        self._waiting.clear()
        # A transport closes its socket in a callback of its loop, which no longer runs. (uvloop closes its own.)
        transport: Any = self._transport
        lowest = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None) or transport
        with contextlib.suppress(RuntimeError):
            transport.abort()
        with contextlib.suppress(RuntimeError, AttributeError):
            lowest._call_connection_lost(None)
        # uvloop's never says that, and a StreamWriter then warns when it is collected.
        if not transport.is_closing():
            writer: Any = self._connection._writer
            writer._transport = SimpleNamespace(is_closing=lambda: True)
        self._forget_connection()

    def _leave_to_parent(self) -> None:
        """Disconnect a forked child from the parent's socket, so that the child cannot send, read or close it.

        Closing the transport would remove the socket from the epoll set, which the parent shares.
        """
        self._lost = ConnectionError(
            "this connection belongs to the parent process; open a Dedup in the forked process"
        )
        self._tell_unusable()
        sock = self._transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, sock.fileno(), inheritable=False)
        os.close(null)

    def data_received(self, data: bytes) -> None:
        """Deliver the replies that are complete (asyncio calls this)."""
        reader, waiting = self._reader, self._waiting
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                if not waiting and self._on_push is not None:
                    self._on_push(reply)
                    continue
                waiting.popleft()(reply)
            if reader.len() > MAX_REPLY_BYTES:
                self.abort("Redis sent a reply of more than 256 MiB")
            if self._finishing:
                self.finish()
        except (hiredis.ProtocolError, IndexError) as error:
            self.abort(f"Redis sent a reply that cannot be read: {error!r}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail every command that waits for a reply (asyncio calls this)."""
        self._end(ConnectionError(str(exc) if exc else "Redis closed the connection"))
        if not self.gone.done():
            self.gone.set_result(None)
        self._forget_connection()

    def _end(self, error: ConnectionError) -> None:
        if self._lost is None:
            self._lost = error
        self._tell_unusable()
        if not self.closed.done():
            self.closed.set_result(None)
        while self._waiting:
            # An instance for each: a shared exception would collect the tracebacks of all its raisers.
            self._waiting.popleft()(ConnectionError(*error.args))

    def _tell_unusable(self) -> None:
        tell, self.on_unusable = self.on_unusable, None
        if tell is not None:
            tell(self)

    def _forget_connection(self) -> None:
        self._connection._reader = None
        self._connection._writer = None


def take_transport(connection: AbstractConnection) -> asyncio.Transport:
    """Return the transport of a connected redis-py connection.

    redis-py has no public name for it; tests run this on the oldest and the newest allowed redis-py.
    """
    writer = connection._writer
    assert writer is not None, "the connection is not connected"
    return cast(asyncio.Transport, writer.transport)  # uvloop's transports are not a subclass of asyncio's


def forget_unsent(transport: asyncio.Transport) -> None:
    """Let the system drop the bytes that it has not delivered when the socket is closed.

    Otherwise it goes on sending for minutes. The server would execute these bytes after the commands that were sent
    again over the next connection: a machine would move twice, and a claim would be held that no caller knows of.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family != socket.AF_UNIX:
        with suppress(OSError, ValueError):  # it is closed already; uvloop raises a ValueError then
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
