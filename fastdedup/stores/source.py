"""Where the connections of a gate get their stores from: each one of its own, or all the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .base import Store


@dataclass(frozen=True, slots=True)
class StoreSource:
    """The stores of one gate.

    Attributes:
        next: returns the store for one more connection.
        has_several: each connection has a store of its own, which reaches the same records; else all have the same.
        forgets: a store that is closed has lost its records: so the end of an event loop does not close it.
    """

    next: Callable[[], Store]
    has_several: bool = False
    forgets: bool = False
