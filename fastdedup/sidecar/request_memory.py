"""The memory that requests of all connections of a sidecar take: those that came in part, or wait for their turn.

Without a bound, 1,000 clients that send a request of 1 MB without its end take 1 GB. If requests take too many bytes,
the sidecar hangs up on the client with the most of them, just as for replies that lie unread (`reply_memory.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Final

from ..failures import log

_FREE: Final = 4096
"""The bytes of one connection that are not counted, so that a short request is never refused."""
PLACE: Final = 512
"""The bytes, about, that a RESP command takes until it is answered; an HTTP request takes four times as many."""


class RequestMemory:
    """Counts the bytes of requests; belongs to one event loop.

    Args:
        most: the bytes that all requests together may take.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # Mutable: the bytes that are taken; the shares of connections that take some.
        self.taken = 0
        self._shares: set[RequestShare] = set()

    def count(self, share: RequestShare, size: int) -> None:
        """Count a connection's bytes anew; while there are too many, hang up on the client with the most."""
        self._set(share, size if size > _FREE else 0)
        while self.taken > self._most:
            largest = max(self._shares, key=attrgetter("size"))
            log.warning("hung up on a client whose requests take %d bytes", largest.size)
            self._set(largest, 0)
            largest.shed()

    def _set(self, share: RequestShare, size: int) -> None:
        self.taken += size - share.size
        share.size = size
        if size:
            self._shares.add(share)
        else:
            self._shares.discard(share)


class RequestShare:
    """The bytes that one connection's requests take.

    Args:
        memory: that of all connections.
        shed: lets go of the requests, and hangs up.
    """

    __slots__ = ("_memory", "shed", "size")

    def __init__(self, memory: RequestMemory, shed: Callable[[], None]) -> None:
        self._memory = memory
        self.shed = shed
        # Mutable: the bytes that are counted now.
        self.size = 0

    def weigh(self, size: int) -> None:
        """Count these bytes from now on; that may call `shed`."""
        if size != self.size:
            self._memory.count(self, size)
