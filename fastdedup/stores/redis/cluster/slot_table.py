"""Which node of a Redis Cluster holds a key: the main path of every operation on a Cluster."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Callable
from typing import Final, Generic, TypeVar

SLOTS: Final = 16_384
_BRACE: Final = ord(
    "{"
)  # as a number: Python 3.11 looks for b"{" only after an exception of its own, which costs 0.2 µs

N = TypeVar("N")


def slot_of(wire: bytes) -> int:
    """Return a key's slot: that of the text between the first braces, or of the whole key if that text is empty."""
    if _BRACE in wire:
        tag, closed, _ = wire.partition(b"{")[2].partition(b"}")
        if tag and closed:
            wire = tag
    return crc_hqx(wire, 0) & 16_383


class SlotTable(Generic[N]):
    """The node of each slot.

    Args:
        unassigned: returns the error for a key whose slot has no known node.
    """

    def __init__(self, unassigned: Callable[[], Exception]) -> None:
        self._unassigned = unassigned
        self.owners: list[N | None] = [None] * SLOTS
        """The node of each slot; None if it is not known. The list object stays the same, its items change."""

    def node_of(self, wire: bytes) -> N:
        """Return the node that holds a key now.

        Raises:
            UnavailableError: the node of this key's slot is not known.
        """
        node = self.owners[slot_of(wire)]
        if node is None:
            raise self._unassigned()
        return node
