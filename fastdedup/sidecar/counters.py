"""The figures that only a sidecar counts: its connections, and answers by their replies in the Redis protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any, Final

from ..core.counters import GateCounters
from ..declarations import BOUNDS as BOUNDS
from ..errors import ConfigError, InvalidKeyError, ResultError, ResultTooLargeError
from ..gateway import Dedup

_CLAIMS: Final = ("claim", "redeem")


class Counters(GateCounters):
    """Counts what one sidecar does."""

    def __init__(self) -> None:
        super().__init__()
        # Mutable: connections and requests that were refused; what returns the open connections.
        self.connections_refused = 0
        self.bad_requests = 0
        self.connections: Callable[[], Iterable[Any]] = tuple

    def answered(self, dedup: Dedup, verb: str, outcome: str, since: float) -> None:
        """Count an answer to a command that began at `since`, a `perf_counter()`."""
        self.observe(dedup.settings.namespace, verb, outcome, perf_counter() - since)


def outcome_of_reply(verb: str, reply: bytes) -> str:
    """Return a RESP reply's outcome as one word, of few: each one is a series of the metrics.

    The reply is a claim's `[outcome, …]`, a number, null, or any other one, which is `ok`. An error is counted by
    `outcome_of`, on both wires.
    """
    if verb == "consume":
        return reply.split(b"\r\n", 2)[1].decode()
    if verb in _CLAIMS:
        return reply.split(b"\r\n", 3)[2].decode()
    return "absent" if reply in (b"$-1\r\n", b"_\r\n", b":0\r\n") else "ok"


def is_bad(fault: Exception) -> bool:
    """True for the exception of a request that could not be run because the client sent something invalid."""
    return isinstance(fault, ConfigError | InvalidKeyError | ResultError | ResultTooLargeError)
