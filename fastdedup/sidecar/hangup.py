"""Facts that a Unix socket has about the other side: whether it has gone, or has read all, and what it sent last."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_MOST: Final = 1024 * 1024
"""The bytes that are read behind the end of a connection: by default, Linux keeps fewer in a Unix socket."""
_LONGEST_PAUSE: Final = 1.0
"""Seconds between two looks at a connection that is looked at for long: 900 clients took 8 % of a CPU at 0.05 s."""
_PIECE: Final = 64 * 1024
"""The bytes of one read: nearly always there are none."""


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
            while len(rest) < _MOST and (piece := os.read(sock.fileno(), _PIECE)):
                rest += piece
    return rest


def _signs(transport: asyncio.Transport) -> int:
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return 0
    look = select.poll()
    look.register(sock.fileno(), 0)
    return sum(events for _, events in look.poll(0))


class Watch:
    """Looks at a connection now and then, for a fact that the loop does not tell.

    Args:
        transport: the connection's.
        then: called once it is a fact.
    """

    __slots__ = ("_due", "_then", "_transport")

    pause = 0.0
    """Seconds before the first look; the pause doubles with each further one, up to `_LONGEST_PAUSE`."""

    def __init__(self, transport: asyncio.Transport, then: Callable[[], object]) -> None:
        self._transport = transport
        self._then = then
        # Mutable: is a look due.
        self._due = False

    def begin(self) -> None:
        """Look from now on, until it is a fact or cannot become one."""
        if not self._due:
            self._wait(self.pause)

    def _wait(self, pause: float) -> None:
        self._due = True
        asyncio.get_running_loop().call_later(pause, self._look, min(2 * pause, _LONGEST_PAUSE))

    def _look(self, pause: float) -> None:
        self._due = False
        if self._transport.is_closing():
            return
        found = self.found(self._transport)
        if found:
            self._then()
        elif found is not None:
            self._wait(pause)

    def found(self, transport: asyncio.Transport) -> bool | None:
        """Return True if it is a fact, and None if it cannot become one."""
        raise NotImplementedError


class ReadWatch(Watch):
    """Notices that the other side has read all that was written."""

    __slots__ = ()
    pause = 0.05

    def found(self, transport: asyncio.Transport) -> bool:
        """Return True if it has."""
        # Here, because Windows has neither, and there the module can be imported like the sidecar's others.
        import fcntl
        import termios

        if transport.get_write_buffer_size():
            return False
        sock = transport.get_extra_info("socket")
        if sock is not None:
            with suppress(OSError):  # this system does not tell
                return not any(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))
        return True


class HangupWatch(Watch):
    """Notices that a client hangs up while its connection is not read: the loop tells of that only after a read."""

    __slots__ = ()
    pause = 1.0

    def found(self, transport: asyncio.Transport) -> bool | None:
        """Return True if it has hung up; None once the connection is read."""
        return None if transport.is_reading() else hung_up(transport)
