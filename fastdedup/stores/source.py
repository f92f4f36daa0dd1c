"""Where the connections of a gate get their stores from: each one of its own, or all the same."""

from __future__ import annotations

from collections.abc import Callable

from .base import Store


class StoreSource:
    """The stores of one gate.

    Args:
        first: the first of them.
        make: returns another one, which reaches the same records over a connection of its own; None where all
            connections use the first.
        forgets: a store that is closed has lost its records.
    """

    def __init__(
        self, first: Store, make: Callable[[], Store] | None = None, *, forgets: bool = False
    ) -> None:
        # Mutable: None once it was given away, if each connection has a store of its own.
        self._first: Store | None = first
        self._make = make
        self.forgets = forgets
        """True where a store that is closed has lost its records: the end of an event loop does not close it."""

    @property
    def has_several(self) -> bool:
        """True where each connection has a store of its own, False where the next one uses the same store."""
        return self._make is not None

    def next(self) -> Store:
        """Return the store for one more connection."""
        store = self._first
        if self._make is not None:
            self._first = None
        if store is None:
            assert self._make is not None
            store = self._make()
        return store
