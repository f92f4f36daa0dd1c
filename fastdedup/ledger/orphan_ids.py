"""The ids of ledgers that were given up: a call may have remembered them, and no caller got True.

They are orphans, and freed with the others (see `core/orphans.py`). But a later call of the same process may ask for
such an id before that: it takes the place of the call that was given up, or waits until that is over.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.orphans import HeldKey, Orphan, Orphans
from ..errors import UnavailableError
from ..forking import InChild
from ..kernel.codes import Code
from ..kernel.operations import Op
from .ids import NONCE_BYTES
from .operations import FirstOp, ForgetIdOp, IdOp

_SLACK = 1024


class OrphanId(Orphan):
    """An id that was given up.

    Attributes:
        op: what may have remembered it.
        is_removing: the store was asked to remove it; that may come late.
    """

    __slots__ = ("is_removing", "op")

    def __init__(self, op: IdOp) -> None:
        super().__init__()
        self.op = op
        self.is_removing = False

    def renewed(self) -> OrphanId:
        """As that of a claim; an id that the store was asked to remove stays so."""
        renewed = OrphanId(self.op)
        renewed.is_removing = self.is_removing
        return renewed

    def may_come_late(self, owner: bytes) -> bool:
        """True: another call has another nonce."""
        return True

    def look(self, wire: bytes) -> Op:
        """Remove it at once, by its nonce."""
        self.is_removing = True
        return ForgetIdOp(wire, self.op.entry, self.op.terms)

    def release(self, held_key: HeldKey, found: object) -> None:
        """None: the look itself removes it."""
        return


class OrphanIds:
    """The orphans that are ids, found by the id that another call asks for."""

    def __init__(self, orphans: Orphans) -> None:
        self._orphans = orphans
        # Mutable: the entries of each id by its place, some of which are over.
        self._places: dict[bytes, list[bytes]] = {}
        self._in_child = InChild(self._leave_to_parent)

    def __bool__(self) -> bool:
        return bool(self._orphans)

    def _leave_to_parent(self) -> None:
        self._places.clear()

    def add(self, op: IdOp) -> None:
        """Free an id that a call may have remembered, and of which no caller knows."""
        if self._orphans.is_closed:
            return
        self._note(op)
        self._orphans.put((op.wire, op.entry), OrphanId(op))
        if len(self._places) > 2 * self._orphans.kept + _SLACK:
            for place in [*self._places]:
                self._of_place(place)

    def _note(self, op: IdOp) -> None:
        self._places.setdefault(op.place, []).append(op.entry)

    def find_again(self) -> None:
        """Note the ids among the orphans that `Orphans.take_over` has got from another event loop."""
        for _, orphan in self._orphans.listed():
            if isinstance(orphan, OrphanId):
                self._note(orphan.op)

    async def until_free(self, ops: Sequence[FirstOp]) -> None:
        """Wait until none of these ids is just being removed: that could come behind what is sent now."""
        places = [op.place for op in ops]
        while not {wire + entry[:-NONCE_BYTES] for wire, entry in self._orphans.under_way}.isdisjoint(places):
            await self._orphans.until_round_ends()

    def leave_to_call(self, op: FirstOp, *, named: bool) -> None:
        """Leave an id alone: the call that gave it up asks for it again.

        A call without a name takes the place of a call that was given up, and its nonce. So it gets True if that
        call has taken effect, or takes effect later because its command still lies in a socket. It takes no place
        that the store was asked to remove: the removal may come late, and would remove this call's id.
        """
        if self._orphans.pop((op.wire, op.entry)) is None and not named and self._places:
            for entry, orphan in self._of_place(op.place):
                if not orphan.is_removing:
                    self._orphans.pop((op.wire, entry))
                    op.entry = entry
                    break

    def is_removing(self, op: FirstOp) -> bool:
        """True if the store was asked to remove what a given-up call has remembered of this id."""
        return any(orphan.is_removing for _, orphan in self._pending(op))

    async def free_now(self, op: FirstOp) -> None:
        """Free now what was given up of an id: another call asks for it, and cannot take that call's place.

        Raises UnavailableError if the store did not answer: whether the id is new is then not known.
        """
        pending = self._pending(op)
        answers = await self._orphans.ask([orphan.look(op.wire) for _, orphan in pending])
        for (entry, _), answer in zip(pending, answers, strict=True):
            if isinstance(answer, UnavailableError):
                raise answer
            orphan = self._orphans.get((op.wire, entry))
            if orphan is not None and (answer is Code.OK or answer is Code.ABSENT):
                self._orphans.note_freed((op.wire, entry), orphan)

    def knows(self, op: FirstOp) -> bool:
        """True if the id that a call asked for may be remembered for a call that was given up."""
        return bool(self._places) and bool(self._pending(op))

    def _pending(self, op: FirstOp) -> list[tuple[bytes, OrphanId]]:
        """Return those of an id of which it is not likely that nothing is left."""
        return [found for found in self._of_place(op.place) if found[1].is_pending]

    def _of_place(self, place: bytes) -> list[tuple[bytes, OrphanId]]:
        """Return the orphans of an id by their entries; what is over is dropped from the list."""
        listed = self._places.pop(place, None)
        found = []
        for entry in listed or ():
            orphan = self._orphans.get((place[: len(place) - len(entry) + NONCE_BYTES], entry))
            if isinstance(orphan, OrphanId):
                found.append((entry, orphan))
        if found:
            self._places[place] = [entry for entry, _ in found]
        return found
