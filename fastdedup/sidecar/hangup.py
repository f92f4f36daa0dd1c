"""Tells a client that has gone from one that only sends nothing more."""

from __future__ import annotations

import asyncio
import select


def hung_up(transport: asyncio.Transport) -> bool:
    """Return True if the other side does not read any more either (poll's POLLHUP, on Unix sockets)."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return False
    look = select.poll()
    look.register(sock.fileno(), 0)
    return any(events & select.POLLHUP for _, events in look.poll(0))
