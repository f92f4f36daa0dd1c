"""The replies of a store; `operations.py` has the answer to a claim, and says which operation gets which reply."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..errors import UnavailableError
from .codes import Code


class StoreRefusal(UnavailableError):
    """The store answers, but refuses an operation, which it may have done. A sidecar does if its policy refuses.

    This is a reply, which a store never raises: so it does not count for the breaker, and no policy is asked.
    """


class RefusedAlone(StoreRefusal):
    """The store refuses this key: nothing was done, the other keys are not affected, and no claim is given up.

    An engine gives it to a claim with a large result that had no turn in time.
    """


@dataclass(eq=False, slots=True)
class Redirect:
    """An operation that did nothing here and must go on to another node of the store, `to`. No caller gets this."""

    to: Any


@dataclass(eq=False, slots=True)
class TransitionReply:
    """The answer to one transition: OK, ALREADY, ILLEGAL, STALE, UNSURE or FOREIGN."""

    code: Code
    state: str
    version: int
    degraded: bool = field(default=False, init=False)
    underreplicated: bool = field(default=False, init=False)


@dataclass(eq=False, slots=True)
class Adopted:
    """The answer to one adoption; it names the record that the key held before.

    `code`: OK (adopted, no claim is lost), THEIRS_STANDS (the former record stays, the new record is lost),
    OURS_STANDS (the new record stands, the former record is lost), FOREIGN.
    """

    code: Code
    owner: bytes
    """The owner field of the former record; empty if the key held no record."""
    fence: int
    settled: bool = field(default=False, kw_only=True)
    """True if the former record was a success or a failure."""


@dataclass(eq=False, slots=True)
class StoredForm:
    """The settings of a ledger's creation: the text in the store, and the server's time when it was read, in ms.

    `degraded`: a policy has answered.
    """

    text: bytes
    now_ms: int
    degraded: bool = field(default=False, kw_only=True)


@dataclass(eq=False, slots=True)
class Weight:
    """The content of a ledger's bucket: all entries, the entries that have not expired, and bytes of memory."""

    entries: int
    living: int
    size: int
