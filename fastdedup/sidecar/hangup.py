"""Tells a client that has gone from one that only sends nothing more, and reads what it has sent before."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_PAUSE: Final = 1.0
"""Seconds between two looks at a connection that is not read."""
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


def _signs(transport: asyncio.Transport) -> int:
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return 0
    look = select.poll()
    look.register(sock.fileno(), 0)
    return sum(events for _, events in look.poll(0))


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
