"""The limits of one client of the sidecar: every buffer, count and wait has a bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..errors import UnavailableError
from ..stores.sidecar.wire import LONGEST_TURN


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits, sizes in bytes and times in seconds.

    A client that exceeds a limit gets an error. If the rest of its stream cannot be read any more, its connection is
    closed.
    """

    connections: int = 1024
    """Open connections; a further one is refused, unless a connection that has sent nothing can be closed for it."""
    connections_per_uid: int | None = None
    """Open connections of one user of this host. Left out: no limit but `connections`."""
    in_flight: int = 1024
    """Unanswered commands of one connection; further commands are not read until replies have gone out. Of those that
    wait for a key 64 wait at once; the rest follows them, and its WAIT counts from its arrival."""
    frame: int = 1024 * 1024
    """Bytes of one request: a RESP command or an HTTP body."""
    arguments: int = 64
    """Arguments of one RESP command."""
    batch: int = 1000
    """Operations in one `/v1/batch`. Batches of all clients take half of `requests_in_all`; further ones wait."""
    unread: int = 1024 * 1024
    """Bytes of replies that a client has not read; further requests wait."""
    replies: int = 8 * 1024 * 1024
    """Bytes of large results in one answer to a batch, and in the replies of one connection that wait."""
    replies_in_all: int = 64 * 1024 * 1024
    """Bytes of replies of all clients that wait or lie unread; clients that do not read are hung up on."""
    requests_in_all: int = 64 * 1024 * 1024
    """Bytes of requests of all clients that have come in part, or wait; clients with the most are hung up on."""
    ephemeral: int = 10_000
    """EPHEMERAL claims that one connection holds; a further one is refused."""
    ephemeral_in_all: int = 100_000
    """EPHEMERAL claims that all connections hold; a further one is refused."""
    request_timeout: float = LONGEST_TURN
    """Seconds in which a request must arrive whole, in which a client must read its replies, and in which the turn of
    a list must come."""
    idle_timeout: float = 300.0
    """Seconds after which a connection without a request is closed."""
    namespaces: int = 1000
    """Namespaces that clients may name beside the configured ones; a further one is refused."""


MOST_LISTED: Final = 1000
"""Records after which one list stops."""
MOST_LISTING_MS: Final = 2000
"""Milliseconds after which one list stops: its client asks again with the cursor."""
MOST_PAGE: Final = 1024
"""Keys that the store looks at in one step of a list."""


class LimitError(UnavailableError):
    """Clients have reached a limit; the text says which one, and does not name an address of the store."""
