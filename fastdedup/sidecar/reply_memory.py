"""The memory that replies take, of all connections of a sidecar: replies that wait, and replies that lie unread.

Without a bound, 64 clients that ask for large results and read nothing take 2 GB. A large reply reserves its bytes
before it is built. If there are too many bytes, the sidecar hangs up on the clients that have read nothing for the
longest time, like Redis with its `maxmemory-clients`.

After that, the client's transport gives its bytes back in a later turn of the loop. They are counted until then:
otherwise a turn that answers 60 clients takes four times the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from operator import attrgetter
from time import monotonic
from typing import Any, Final, Protocol

from ..failures import log
from .limits import LimitError
from .request_memory import RequestMemory

LARGE: Final = 4096
"""The bytes from which a reply is large: only large replies are counted before they are built."""
_PATIENCE = 1.0
"""Seconds without a read after which a client loses its connection to another client's reply."""


class Reader(Protocol):
    """A connection whose client reads replies, or does not."""

    unread: UnreadReplies

    def cut(self) -> None:
        """Close at once, and give back what it has reserved."""
        ...


class UnreadReplies:
    """The bytes of replies that one connection's transport keeps, because the client has not read them.

    Args:
        memory: that of all connections.
        transport: the connection's. It must keep no bytes without telling (`set_write_buffer_limits(high=0)`).

    Attributes:
        since: since when it keeps any, by `time.monotonic()`; 0.0 once the client has read them all.
    """

    __slots__ = ("_largest", "_memory", "_transport", "_written", "since")

    def __init__(self, memory: ReplyMemory, transport: asyncio.Transport) -> None:
        self._memory = memory
        self._transport = transport
        # Mutable: the bytes that were written since then, and the most of them in one write.
        self.since = 0.0
        self._written = 0
        self._largest = 0

    def begin(self) -> None:
        """Count from now on: the transport keeps bytes."""
        self.since = monotonic()

    def end(self) -> None:
        """Forget the count: the client has read everything."""
        self._written = self._largest = 0
        self.since = 0.0

    def add(self, size: int) -> None:
        """Count a write. Called after the transport has its bytes."""
        self._written += size
        self._largest = max(self._largest, size)
        self._memory.grew(size)

    def size(self) -> int:
        """Return the bytes in memory: a transport keeps a reply whole until its last byte is sent."""
        if not self._written:
            return 0
        return min(self._written, self._transport.get_write_buffer_size() + self._largest)


class ReplyMemory:
    """Counts the bytes of replies; belongs to one event loop.

    Args:
        most: the bytes that all replies together may take.
        requests: the memory of the same connections' requests; without it one of the same size.
    """

    def __init__(self, most: int, requests: RequestMemory | None = None) -> None:
        self._most = most
        self.requests = RequestMemory(most) if requests is None else requests
        self.connections: Collection[Any] = ()
        """The server's connections, each a `Reader`."""
        # Mutable: the bytes of replies that wait; the bytes of replies that lie unread, or more (each growth is
        # counted at once; the true number is looked up when this one seems too large); how many clients were cut; the
        # connections whose client was cut and whose transports have not given their bytes back; those bytes.
        self.reserved = 0
        self._unread = 0
        self.cut = 0
        self._parting: set[Any] = set()
        self._leaving = 0

    @property
    def taken(self) -> int:
        """The bytes that all replies take, or more."""
        return self.reserved + self._unread + self._leaving

    @property
    def is_clearing(self) -> bool:
        """True from the cut of a client until its bytes are given back: there is room in a moment."""
        return self._leaving > 0

    def reserve(self, size: int, *, ahead: bool = False) -> bool:
        """Reserve bytes for a reply; return False if there is no room even after slow clients were cut.

        `ahead`: its turn has not come, so it needs no look at all clients: 300 clients made 300,000 such looks, and
        another client's claim waited for 20 s.
        """
        if not (self.taken + size <= self._most if ahead else self.has_room(size)):
            return False
        self.reserved += size
        return True

    def has_room(self, size: int) -> bool:
        """Return whether there is room for a reply that is written at once; if not, cut slow clients first."""
        if self.taken + size > self._most:
            self._make_room(size, _PATIENCE)
        return self.taken + size <= self._most

    def take(self, size: int) -> None:
        """Reserve bytes for a reply that can wait no longer."""
        self.reserved += size
        self.grew(0)

    def free(self, size: int) -> None:
        """Give back reserved bytes."""
        self.reserved -= size

    def grew(self, size: int) -> None:
        """Take note that this many bytes were written, and may lie unread. Called after the transport has them."""
        self._unread += size
        if self.reserved + self._unread > self._most:
            self._make_room(0, 0.0)

    def full(self) -> LimitError:
        """Return the error for a reply that has no room."""
        return LimitError(
            f"clients have not read {self.taken} bytes of replies, and all of them may have "
            f"{self._most} (limits.replies_in_all): ask again later"
        )

    def _make_room(self, size: int, patience: float) -> None:
        """Count what lies unread; while there is too much, cut clients that have read nothing for that long.

        Without patience clients that read slowly are cut as well, those with the most bytes first.
        """
        connections: list[Reader] = [each for each in self.connections if each not in self._parting]
        self._unread = sum([each.unread.size() for each in connections])
        before = monotonic() - patience
        stalled = [
            each for each in connections if 0.0 < each.unread.since <= before and each.unread.size() > LARGE
        ]
        self._cut(sorted(stalled, key=attrgetter("unread.since")), size)
        if not patience:
            self._cut(sorted(connections, key=lambda each: each.unread.size(), reverse=True), size)

    def _cut(self, connections: list[Reader], size: int) -> None:
        """Hang up on these clients, in this order, until there will be room for `size` more bytes."""
        for each in connections:
            unread = each.unread.size()
            if self.reserved + self._unread + size <= self._most or not unread:
                return
            if each not in self._parting:
                self._part(each, unread)

    def _part(self, connection: Reader, unread: int) -> None:
        """Hang up on this client; count its bytes until its transport has given them back."""
        log.warning("hung up on a client that does not read: %d bytes of its replies lie unread", unread)
        self._unread -= unread
        self._leaving += unread
        self._parting.add(connection)
        self.cut += 1
        connection.cut()
        # The transport closes in the next turn of the loop, and libuv frees its bytes at the end of that turn.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._parted, connection, unread)

    def _parted(self, connection: Reader, unread: int) -> None:
        self._leaving -= unread
        self._parting.discard(connection)
