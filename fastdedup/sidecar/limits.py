"""The limits of one client of the sidecar: every buffer, count and wait has a bound."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits, sizes in bytes and times in seconds.

    A client that exceeds a limit gets an error. Its connection is closed where the rest of its stream cannot be
    read any more.
    """

    connections: int = 1024
    """Open connections; a further one is closed."""
    in_flight: int = 1024
    """Unanswered commands of one connection; further commands are not read until replies have gone out."""
    frame: int = 1024 * 1024
    """Bytes of one request: a RESP command or an HTTP body."""
    arguments: int = 64
    """Arguments of one RESP command."""
    batch: int = 1000
    """Operations in one `/v1/batch`."""
    unread: int = 1024 * 1024
    """Bytes of replies that a client has not read; further requests wait."""
    request_timeout: float = 10.0
    """Seconds in which a request must arrive whole, and in which a client must read its replies."""
    idle_timeout: float = 300.0
    """Seconds after which a connection without a request is closed."""
    namespaces: int = 1000
    """Namespaces that clients may name beside the configured ones; a further one is refused."""
