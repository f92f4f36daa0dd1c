"""The replies of a store; `operations.py` has the answer to a claim, and says which operation gets which reply."""

from __future__ import annotations

from typing import Any

from ..errors import UnavailableError
from .codes import Code


class RefusedAlone(UnavailableError):
    """The store answers, but refuses this key: nothing was done, and the other keys are not affected.

    This is a reply, which a store never raises: so it does not count for the breaker, and no claim is given up.
    """


class Redirect:
    """An operation that did nothing here and must go on to another node of the store, `to`. No caller gets this."""

    __slots__ = ("to",)

    def __init__(self, to: Any) -> None:
        self.to = to


class TransitionReply:
    """The answer to one transition: OK, ALREADY, ILLEGAL, STALE, UNSURE or FOREIGN."""

    __slots__ = ("code", "degraded", "state", "underreplicated", "version")

    def __init__(self, code: Code, state: str, version: int) -> None:
        self.code = code
        self.state = state
        self.version = version
        self.degraded = False
        self.underreplicated = False


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
