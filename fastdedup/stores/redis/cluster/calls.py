"""The calls that a batch becomes: one for a whole node, or one for each slot."""

from __future__ import annotations

from collections.abc import Sequence

from ....kernel.operations import Op
from ..server import Answer, ScriptCall
from .slot_table import slot_of


class PlacedCall(ScriptCall):
    """A part of a batch. `places`: the positions of its operations in the batch."""

    __slots__ = ("places",)
    ops: list[Op]

    def __init__(
        self, ops: list[Op], places: list[int], *, declared: bool = True, answer: Answer | None = None
    ) -> None:
        super().__init__(ops, declared=declared)
        self.places = places
        self.answer = answer


def whole(ops: Sequence[Op]) -> PlacedCall:
    """Return one call for all operations, of whatever slots."""
    return PlacedCall(list(ops), list(range(len(ops))), declared=False)


def by_slot(ops: Sequence[Op]) -> list[PlacedCall]:
    """Sort operations into a call for each slot."""
    calls: dict[int, PlacedCall] = {}
    for place, op in enumerate(ops):
        slot = slot_of(op.wire)
        call = calls.get(slot)
        if call is None:
            calls[slot] = PlacedCall([op], [place])
        else:
            call.ops.append(op)
            call.places.append(place)
    return list(calls.values())
