"""The figures that only a sidecar counts: its connections, and answers by their replies in the Redis protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..core.counters import GateCounters, outcome_of
from ..errors import ConfigError, InvalidKeyError, ResultError, ResultTooLargeError
from .ledgers import LedgerSettingsError
from .releases import Undoable


class Counters(GateCounters):
    """Counts what one sidecar does."""

    def __init__(self) -> None:
        super().__init__()
        # Mutable: connections and requests that were refused; what returns the open connections.
        self.connections_refused = 0
        self.bad_requests = 0
        self.connections: Callable[[], Iterable[Any]] = tuple


def outcome_found(found: Any) -> str:
    """Return in one word, of few, what a verb has found or done: each word is a series of the metrics.

    A claim's verdict has its outcome; `absent` is a record that does not exist, and anything else is `ok`. An error
    is counted by `outcome_of`.
    """
    if type(found) is Undoable:
        found = found.found
    return "absent" if found is None or found is False else outcome_of(found)


def is_bad(fault: Exception) -> bool:
    """True for the exception of a request that could not be run because the client sent something invalid."""
    if isinstance(fault, LedgerSettingsError):
        return False
    return isinstance(fault, ConfigError | InvalidKeyError | ResultError | ResultTooLargeError)
