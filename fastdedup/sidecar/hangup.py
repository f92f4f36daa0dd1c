"""What a Unix socket knows of the other side: has it gone, has it read all, and what has it sent before it went."""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_PAUSE: Final = 1.0
"""Seconds between two looks at a connection that is not read."""
_SOON: Final = 0.05
"""Seconds between two looks whether a reply is read."""
_MOST: Final = 1024 * 1024
"""The bytes that are read behind the end of a connection: a Unix socket keeps fewer."""


def hung_up(transport: asyncio.Transport) -> bool:
    """Return True if the other side does not read any more either (poll's POLLHUP, on Unix sockets)."""
    return bool(_signs(transport) & select.POLLHUP)


def is_unread(transport: asyncio.Transport) -> bool:
    """Return True if the other side will not read the last bytes: some are not sent, or it closed before it read."""
    return bool(transport.get_write_buffer_size() or _signs(transport) & select.POLLERR)


def rest_of(transport: asyncio.Transport) -> bytes:
    """Return what the other side has sent and nothing has read: a write that fails ends a connection before that."""
    sock, rest = transport.get_extra_info("socket"), b""
    if sock is not None and sock.fileno() >= 0:
        with suppress(OSError):  # no more is there, or it is lost
            while len(rest) < _MOST and (piece := os.read(sock.fileno(), _MOST)):
                rest += piece
    return rest


def _lies_unread(transport: asyncio.Transport) -> bool:
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError):  # this system does not tell
            return any(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))
    return False


def _signs(transport: asyncio.Transport) -> int:
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return 0
    look = select.poll()
    look.register(sock.fileno(), 0)
    return sum(events for _, events in look.poll(0))


class ReadWatch:
    """Notices that the other side has read all that was written: nothing tells of that.

    Args:
        transport: the connection's.
        done: called then, unless the connection is closing.
    """

    __slots__ = ("_done", "_due", "_transport")

    def __init__(self, transport: asyncio.Transport, done: Callable[[], object]) -> None:
        self._transport = transport
        self._done = done
        # Mutable: is a look due.
        self._due = False

    def begin(self) -> None:
        """Look soon, and again until all is read."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_later(_SOON, self._look)

    def _look(self) -> None:
        self._due = False
        if self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() or _lies_unread(self._transport):
            self.begin()
        else:
            self._done()


class HangupWatch:
    """Notices that a client hangs up while its connection is not read: the loop tells of that only after a read.

    Args:
        transport: the connection's.
        gone: called when the client has hung up.
    """

    __slots__ = ("_due", "_gone", "_transport")

    def __init__(self, transport: asyncio.Transport, gone: Callable[[], object]) -> None:
        self._transport = transport
        self._gone = gone
        # Mutable: is a look due.
        self._due = False

    def begin(self) -> None:
        """Look now and then, until the connection is read again."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_later(_PAUSE, self._look)

    def _look(self) -> None:
        self._due = False
        if self._transport.is_closing() or self._transport.is_reading():
            return
        if hung_up(self._transport):
            self._gone()
        else:
            self.begin()
