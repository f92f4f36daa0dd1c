"""The ids of one call to a ledger, which are answered together."""

from __future__ import annotations

from typing import Any

from ..protocol.ledgers import FirstOp, LedgerTerms
from ..protocol.operations import Reply
from .together import Together


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
