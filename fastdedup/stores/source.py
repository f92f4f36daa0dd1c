"""The source of the stores of a gate's connections: one store for each connection, or one for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .base import Store


@dataclass(frozen=True, slots=True)
class StoreSource:
    """The stores of one gate.

    Attributes:
        next: returns the store for one more connection.
        has_several: True if each connection has a store of its own, for the same records; False if all share one.
        forgets: True if a closed store loses its records: then the end of an event loop does not close it.
    """

    next: Callable[[], Store]
    has_several: bool = False
    forgets: bool = False
