"""The replies to an adoption, and to operations on ledgers. `operations.py` has those that most operations get."""

from __future__ import annotations

from .codes import Code


class Adopted:
    """The answer to one adoption; it names the record that the key held before.

    `code`: OK (adopted, no claim is lost), THEIRS_STANDS (the former record stays, the new record is lost),
    OURS_STANDS (the new record stands, the former record is lost), FOREIGN.
    """

    __slots__ = ("code", "fence", "owner", "settled")

    def __init__(self, code: Code, owner: bytes, fence: int, *, settled: bool = False) -> None:
        self.code = code
        self.owner = owner
        """The owner field of the former record; empty if the key held no record."""
        self.fence = fence
        self.settled = settled
        """True if the former record was a success or a failure."""


class StoredForm:
    """The settings of a ledger's creation: the text in the store, and the server's time when it was read, in ms.

    `degraded`: a policy has answered.
    """

    __slots__ = ("degraded", "now_ms", "text")

    def __init__(self, text: bytes, now_ms: int, *, degraded: bool = False) -> None:
        self.text = text
        self.now_ms = now_ms
        self.degraded = degraded


class Weight:
    """The content of a ledger's bucket: all entries, the entries that have not expired, and bytes of memory."""

    __slots__ = ("entries", "living", "size")

    def __init__(self, entries: int, living: int, size: int) -> None:
        self.entries = entries
        self.living = living
        self.size = size
