"""What one client may ask of the sidecar: every buffer, count and wait has a bound."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes, times in seconds. A client that goes beyond is answered with an error, and closed where
    its stream can no longer be told apart.
    """

    connections: int = 1024
    """At once; one more is told so and closed."""
    in_flight: int = 1024
    """Commands of one connection under way: beyond, its socket is not read until replies have gone out."""
    frame: int = 1024 * 1024
    """One request: a RESP command, or an HTTP body."""
    arguments: int = 64
    """Of one RESP command."""
    batch: int = 1000
    """Operations in one `/v1/batch`."""
    unread: int = 1024 * 1024
    """Replies that a client has not read; beyond, its requests wait."""
    request_timeout: float = 10.0
    """For a request to arrive whole, and for a client to read its replies."""
    idle_timeout: float = 300.0
    """A connection without a request."""
    namespaces: int = 1000
    """Beside those configured; one more is refused."""
