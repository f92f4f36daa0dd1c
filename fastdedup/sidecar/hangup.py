"""Tells a client that has gone from one that only sends nothing more."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Final

_PAUSE: Final = 1.0
"""Seconds between two looks at a connection that is not read."""


def hung_up(transport: asyncio.Transport) -> bool:
    """Return True if the other side does not read any more either (poll's POLLHUP, on Unix sockets)."""
    return bool(_signs(transport) & select.POLLHUP)


def is_unread(transport: asyncio.Transport) -> bool:
    """Return True if the other side will not read the last bytes: some are not sent, or it closed before it read."""
    return bool(transport.get_write_buffer_size() or _signs(transport) & select.POLLERR)


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
