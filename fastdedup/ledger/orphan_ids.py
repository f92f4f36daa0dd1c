"""The ids of ledgers that were given up: a call may have remembered them, and no caller got True.

They are orphans, and freed with the others (see `core/orphans.py`). But a later call of the same process may ask for
such an id before that: it takes the place of the call that was given up, or waits until that is over.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.orphans import HeldKey, Orphan, Orphans
from ..errors import UnavailableError
from ..kernel.codes import Code
from ..kernel.operations import Op
from .ids import NONCE_BYTES
from .operations import FirstOp, ForgetIdOp, IdOp


class OrphanId(Orphan):
    """An id that was given up.

    Attributes:
        op: the operation that may have remembered it.
        is_removing: the store was asked to remove it; that removal may come late.
    """

    __slots__ = ("is_removing", "op")

    def __init__(self, op: IdOp) -> None:
        super().__init__()
        self.op = op
        self.is_removing = False

    @property
    def place(self) -> bytes:
        """The id's place, whichever call has remembered it."""
        return self.op.place

    def renewed(self) -> OrphanId:
        """Return a copy like that of a claim; an id that the store was asked to remove stays in that state."""
        renewed = OrphanId(self.op)
        renewed.is_removing = self.is_removing
        return renewed

    def may_come_late(self, owner: bytes) -> bool:
        """Return True, because another call has another nonce."""
        return True

    def look(self, wire: bytes) -> Op:
        """Return the operation that removes it at once, by its nonce."""
        self.is_removing = True
        return ForgetIdOp(wire, self.op.entry, self.op.terms)

    def release(self, held_key: HeldKey, found: object) -> None:
        """Return None, because the look itself removes it."""
        return


class OrphanIds:
    """The orphans that are ids, found by the id that another call asks for. It has nothing but the orphans."""

    def __init__(self, orphans: Orphans) -> None:
        self._orphans = orphans

    def __bool__(self) -> bool:
        return bool(self._orphans)

    def add(self, op: IdOp) -> None:
        """Free an id that a call may have remembered, but that no caller knows of."""
        self._orphans.put((op.wire, op.entry), OrphanId(op))

    async def until_free(self, ops: Sequence[FirstOp]) -> None:
        """Wait until no removal of these ids is under way, because it could arrive after the next operations."""
        places = [op.place for op in ops]
        while not {wire + entry[:-NONCE_BYTES] for wire, entry in self._orphans.under_way}.isdisjoint(places):
            await self._orphans.until_round_ends()

    def leave_to_call(self, op: FirstOp, *, named: bool) -> None:
        """Do not free an id, because the call that gave it up asks for it again.

        A call without a name takes the place of a call that was given up, and its nonce. So it gets True if that
        call has taken effect, or takes effect later because its command is still in a socket. It takes no place
        that the store was asked to remove: the removal may come late, and would remove this call's id.
        """
        if self._orphans.pop((op.wire, op.entry)) is None and not named:
            for held_key, orphan in self._at(op.place):
                if not orphan.is_removing:
                    self._orphans.pop(held_key)
                    op.entry = held_key[1]
                    break

    def is_removing(self, op: FirstOp) -> bool:
        """True if the store was asked to remove a given-up call's entry of this id."""
        return any(orphan.is_removing for _, orphan in self._pending(op))

    async def free_now(self, op: FirstOp) -> None:
        """Free a given-up id now, because another call asks for it, and cannot take that call's place.

        Raises UnavailableError if the store did not answer: then it is unknown whether the id is new.
        """
        pending = self._pending(op)
        answers = await self._orphans.ask([orphan.look(op.wire) for _, orphan in pending])
        for (held_key, _), answer in zip(pending, answers, strict=True):
            if isinstance(answer, UnavailableError):
                raise answer
            orphan = self._orphans.get(held_key)
            if orphan is not None and (answer is Code.OK or answer is Code.ABSENT):
                self._orphans.note_freed(held_key, orphan)

    def knows(self, op: FirstOp) -> bool:
        """True if the id that a call asked for may be remembered for a call that was given up."""
        return bool(self._pending(op))

    def _pending(self, op: FirstOp) -> list[tuple[HeldKey, OrphanId]]:
        """Return an id's orphans that are still pending."""
        return [found for found in self._at(op.place) if found[1].is_pending]

    def _at(self, place: bytes) -> list[tuple[HeldKey, OrphanId]]:
        return [(key, orphan) for key, orphan in self._orphans.at(place) if isinstance(orphan, OrphanId)]
