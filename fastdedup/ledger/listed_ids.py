"""The ids of one call to a ledger, which are answered together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.orphans import UndoList
from ..core.together import Together
from ..kernel.granted import GRANTED
from ..kernel.operations import Code, Reply
from .operations import FirstOp, LedgerTerms


class ListedId(FirstOp):
    """One id of a list. It takes its answer itself: all of a list share one future."""

    __slots__ = ("_list", "answer")

    def __init__(self, ids: Together, wire: bytes, entry: bytes, terms: LedgerTerms, id: bytes) -> None:
        self.wire = wire
        self.witness = None
        self.entry = entry
        self.terms = terms
        self.id = id
        self._list = ids
        self.answer: Any = None

    def take(self, reply: Reply) -> None:
        """Keep the store's reply."""
        self.answer = reply
        self._list.answered()

    def fail(self, error: BaseException) -> None:
        """Keep the error that came in the reply's place."""
        self.answer = error
        self._list.answered()


def settle_pending(ops: Sequence[ListedId], undo: UndoList, *, again: bool) -> bool:
    """Answer the ids of a list that another call may still give back, and note what is the list's own.

    Such an id is ALREADY if this process was told of it, or takes it back itself, or if it is not asked for `again`.
    Else it is STALE: its caller pauses, and asks again. Return True if there is such an id.
    """
    pending = False
    for op in ops:
        if op.answer is Code.PENDING:
            stays = not again or op.place in GRANTED or undo.knows(op)
            op.answer = Code.ALREADY if stays else Code.STALE
            pending |= not stays
    GRANTED.update([op.place for op in ops if op.answer is Code.OK])
    return pending
