"""What a store answers to an operation: a class for each kind of reply.

Times are milliseconds, owners are bytes, as in `operations.py`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from ..errors import ForeignRecordError, ResultTooLargeError, UnavailableError
from ..model import Outcome


class Code(IntEnum):
    """A script's answer for one key. `lua/_record.lua` has the same numbers; a test compares the two."""

    OK = 0
    REENTERED = 1
    TAKEN = 2
    IN_PROGRESS = 3
    SUCCEEDED = 4
    FAILED = 5
    MISMATCH = 6
    UNKNOWN = 7
    LOST = 8
    FOREIGN = 9
    ALREADY = 10
    ILLEGAL = 11
    STALE = 12
    ABSENT = 13
    OUTRANKED = 14
    OVERRULED = 15
    UNCONFIRMED = 16
    UNSURE = 17
    TOO_LARGE = 18
    ELSEWHERE = 19
    REFUSED = 20
    AGAIN = 21
    FULL = 22
    PENDING = 23


class Verdict:
    """The answer to one claim. Never mutated, because one object may answer many claims of a batch.

    `left_ms` is the time until the lease or the settled record ends.
    `fresh` is False where the same owner got its own claim back, and where the engine answered from
    another claim's reply.
    """

    __slots__ = (
        "attempt",
        "degraded",
        "fence",
        "former",
        "fresh",
        "left_ms",
        "outcome",
        "payload",
        "present",
        "short",
        "value",
    )

    present: bytes
    """The owner field of the record that a duplicate's claim has met; not set where no record was met, or where the
    claim is acquired. Kept as it is read: whoever wants its notes reads them, see `former_trace`."""

    def __init__(
        self,
        outcome: Outcome,
        *,
        fence: int = 0,
        attempt: int = 0,
        left_ms: int = 0,
        payload: bytes = b"",
        fresh: bool = True,
        degraded: bool = False,
    ) -> None:
        self.outcome = outcome
        self.fence = fence
        self.attempt = attempt
        self.left_ms = left_ms
        self.payload = payload
        self.value: Any = None
        """The decoded payload, where it is decoded already and can be shared."""
        self.former = b""
        """The fence and the owner field before this acquisition, as a `proof`; empty for a first one, or where the
        store's first reply was lost."""
        self.fresh = fresh
        self.degraded = degraded
        self.short = False
        """True where too few replicas confirmed the acquisition (`replicas=`); set by the store before it answers."""


class RefusedAlone(UnavailableError):
    """The store answers, and will not touch this key: nothing was done, and the other keys are not concerned.

    A reply, never raised by a store: so it does not count for the breaker, and no claim is given up.
    """


class Redirect:
    """An operation that did nothing here and must go on to another part of the store, `to`. No caller gets this."""

    __slots__ = ("to",)

    def __init__(self, to: Any) -> None:
        self.to = to


class Moved:
    """The answer to one transition: OK, ALREADY, ILLEGAL, STALE, UNSURE or FOREIGN."""

    __slots__ = ("code", "degraded", "short", "state", "version")

    def __init__(self, code: Code, state: str, version: int) -> None:
        self.code = code
        self.state = state
        self.version = version
        self.degraded = False
        self.short = False


class Adopted:
    """The answer to one adoption; names the record that the key held before.

    `code`: OK (adopted, no claim is lost), OUTRANKED (the former record stays, the new record is lost),
    OVERRULED (the new record stands, the former record is lost), FOREIGN.
    """

    __slots__ = ("code", "fence", "owner", "settled")

    def __init__(self, code: Code, owner: bytes, fence: int, *, settled: bool = False) -> None:
        self.code = code
        self.owner = owner
        """The owner field of the former record; empty where the key held no record."""
        self.fence = fence
        self.settled = settled
        """True where the former record was a success or a failure."""


class Stored:
    """A record in a store. `state` is a letter: I P W S F R, or M for a machine (see `lua/_record.lua`)."""

    __slots__ = ("attempt", "fence", "fingerprint", "left_ms", "owner", "payload", "state", "token", "ttl_ms")

    def __init__(
        self,
        state: str,
        *,
        owner: bytes,
        fence: int,
        attempt: int,
        left_ms: int,
        ttl_ms: int,
        fingerprint: bytes | None,
        payload: bytes,
        token: bool = False,
    ) -> None:
        self.state = state
        self.token = token
        self.owner = owner
        self.fence = fence
        self.attempt = attempt
        self.left_ms = left_ms
        self.ttl_ms = ttl_ms
        self.fingerprint = fingerprint
        self.payload = payload


class StoredForm:
    """What a ledger was founded with: the text in the store, and the server's time when it was read, in ms.

    `degraded`: a policy has answered.
    """

    __slots__ = ("degraded", "now_ms", "text")

    def __init__(self, text: bytes, now_ms: int, *, degraded: bool = False) -> None:
        self.text = text
        self.now_ms = now_ms
        self.degraded = degraded


class Weight:
    """What a ledger's bucket holds: all its entries, those that are not over, and bytes of memory."""

    __slots__ = ("entries", "living", "size")

    def __init__(self, entries: int, living: int, size: int) -> None:
        self.entries = entries
        self.living = living
        self.size = size


Reply = (
    Verdict
    | Moved
    | Stored
    | Adopted
    | StoredForm
    | Weight
    | Code
    | Redirect
    | UnavailableError
    | ResultTooLargeError
    | ForeignRecordError
)
"""A claim gets a Verdict or FOREIGN; a transition Moved; a read Stored, ABSENT or FOREIGN; an adoption Adopted; the
founding of a ledger StoredForm; the weighing of a bucket Weight or ABSENT; every other operation a Code. UNCONFIRMED
means OK, but too few replicas confirmed the change. Any operation may get UnavailableError (it alone was refused;
RefusedAlone where certainly nothing was done, scripts say REFUSED), ResultTooLargeError (the result is over the
store's own limit) or ForeignRecordError (the key's value is over the store's limit for a record; scripts say
TOO_LARGE). A part of a store answers Redirect where the operation belongs to another part; scripts say ELSEWHERE."""
