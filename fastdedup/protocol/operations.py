"""What a store is asked and what it answers: the operations of each verb, and their replies.

Times are milliseconds, keys and owners are bytes, so that a store can hand them on as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from ..errors import ForeignRecordError, ResultTooLargeError, UnavailableError
from ..model import Outcome


class Code(IntEnum):
    """What a script answers for one key. `lua/_record.lua` mirrors these numbers; a test compares."""

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


class Verb(StrEnum):
    """The atomic verbs: one Lua file, one operation class, one method of the memory store each."""

    CLAIM = "claim"
    SETTLE = "settle"
    RELEASE = "release"
    RENEW = "renew"
    ISSUE = "issue"
    TRANSITION = "transition"
    READ = "read"
    FORGET = "forget"
    ADOPT = "adopt"


class Mode(StrEnum):
    """How a key is claimed."""

    CLAIM = "claim"
    REDEEM = "redeem"
    """Only a key that was issued."""
    CONSUME = "consume"
    """Redeem and succeed in one step."""


class Terms:
    """What claims have in common, so that a batch states it once. Compared by identity: use `terms()`."""

    __slots__ = ("consumes", "header", "keep_ms", "lease_ms", "mode", "shared", "watch")

    def __init__(self, mode: Mode, lease_ms: int, keep_ms: int, watch: bool) -> None:
        self.mode = mode
        self.lease_ms = lease_ms
        self.keep_ms = keep_ms
        """How long the record lives, the lease included: then a takeover still counts attempts."""
        self.watch = watch
        """The claimant will wait: whoever frees or settles the key must tell."""
        # Looked up once here: an enum's member costs 50 ns to name, several times a claim.
        self.consumes = mode is Mode.CONSUME
        self.shared = mode is Mode.CLAIM
        """Equal concurrent claims may travel as one; each use of a token must be judged by itself."""
        self.header = (str(lease_ms), str(keep_ms), mode.value, "1" if watch else "0")


terms = lru_cache(maxsize=4096)(Terms)


class Op:
    """One operation on one key. `future` is the engine's; a store leaves it alone."""

    verb: ClassVar[Verb]
    __slots__ = ("at", "future", "wire", "witness")

    wire: bytes
    at: float
    """When the engine accepted it, in the loop's time."""
    future: asyncio.Future[Any]
    witness: Callable[[Op, Reply], Reply] | None
    """Called with the store's reply before anything else can happen; may change it. Of a claim it is set only where
    `followers` is a list, as the claim's path does not look for it."""

    def let_witness(self, witness: Callable[[Op, Reply], Reply]) -> None:
        """Have the engine call `witness` when the store has answered, before the caller goes on."""
        self.witness = witness

    def take(self, reply: Reply) -> None:
        """Hand the reply to whoever waits for this operation."""
        self.future.set_result(reply)

    def fail(self, error: BaseException) -> None:
        """Hand an error to whoever waits for this operation."""
        self.future.set_exception(error)

    @property
    def weight(self) -> int:
        """Bytes that this operation adds to its batch beyond keys and owners."""
        return 0


class ClaimOp(Op):
    """Claim, redeem or consume a key."""

    verb = Verb.CLAIM
    __slots__ = ("counted", "fingerprint", "floor_us", "followers", "key", "named", "owner", "tail", "terms")

    key: str
    """What the caller calls it."""
    floor_us: float
    """The engine's, of a caller-chosen owner: what the server's clock had not passed when the claim was sent."""

    def __init__(self, wire: bytes, terms: Terms, owner: bytes, fingerprint: bytes | None) -> None:
        self.wire = wire
        self.terms = terms
        self.owner = owner
        self.fingerprint = fingerprint
        self.tail = owner if fingerprint is None else with_fingerprint(owner, fingerprint)
        # The engine's: claims that this one leads; is the owner the caller's own, and counted as such.
        self.followers: list[ClaimOp] | None = None
        self.named = False
        self.counted = False

    def let_witness(self, witness: Callable[[Op, Reply], Reply]) -> None:
        """As `Op.let_witness`."""
        self.witness = witness
        self.followers = []  # so that the engine takes the way on which it looks closer


class SettleOp(Op):
    """Complete or fail a claim."""

    verb = Verb.SETTLE
    __slots__ = ("fence", "keep_ms", "owner", "payload", "succeeded", "unsure")

    def __init__(
        self, wire: bytes, owner: bytes, fence: int, *, succeeded: bool, keep_ms: int, payload: bytes
    ) -> None:
        self.wire = wire
        self.witness = None
        self.owner = owner
        self.fence = fence
        self.succeeded = succeeded
        self.keep_ms = keep_ms
        self.payload = payload
        self.unsure = False
        """It was sent and got no reply: it may have settled the key, and its record have expired since."""

    @property
    def weight(self) -> int:
        """The payload's size."""
        return len(self.payload)


class ReleaseOp(Op):
    """Free a claim. `consumed`: also a token that this owner consumed in one step; it is issued again."""

    verb = Verb.RELEASE
    __slots__ = ("consumed", "fence", "owner", "unsure")

    def __init__(self, wire: bytes, owner: bytes, fence: int, *, consumed: bool = False) -> None:
        self.wire = wire
        self.witness = None
        self.owner = owner
        self.fence = fence
        self.consumed = consumed
        self.unsure = False
        """It was sent and got no reply: then it may have freed the key, and another owner may have it."""


class RenewOp(Op):
    """Give a claim a lease that runs from now."""

    verb = Verb.RENEW
    __slots__ = ("fence", "keep_ms", "lease_ms", "owner")

    def __init__(self, wire: bytes, owner: bytes, fence: int, lease_ms: int, keep_ms: int) -> None:
        self.wire = wire
        self.witness = None
        self.owner = owner
        self.fence = fence
        self.lease_ms = lease_ms
        self.keep_ms = keep_ms


class IssueOp(Op):
    """Issue a token."""

    verb = Verb.ISSUE
    __slots__ = ("fingerprint", "issuer", "ttl_ms")

    def __init__(self, wire: bytes, issuer: bytes, fingerprint: bytes | None, ttl_ms: int) -> None:
        self.wire = wire
        self.witness = None
        self.issuer = issuer
        self.fingerprint = fingerprint
        self.ttl_ms = ttl_ms


class TransitionOp(Op):
    """Move a state machine. `change` is 10 bytes that name this call, so that a retry is recognised."""

    verb = Verb.TRANSITION
    __slots__ = ("change", "initial", "keep_ms", "sources", "to", "unsure", "version")

    def __init__(
        self,
        wire: bytes,
        *,
        to: str,
        initial: str,
        sources: frozenset[str],
        version: int | None,
        change: bytes,
        keep_ms: int,
    ) -> None:
        self.wire = wire
        self.witness = None
        self.to = to
        self.initial = initial
        self.sources = sources
        self.version = version
        self.change = change
        self.keep_ms = keep_ms
        self.unsure = False
        """It was sent before and got no reply: it may have moved the machine, and another call have moved it on.

        Then it acts only where the record proves that it did not act before; else the answer is UNSURE.
        """


class ReadOp(Op):
    """Read a record."""

    verb = Verb.READ
    __slots__ = ()

    def __init__(self, wire: bytes) -> None:
        self.wire = wire
        self.witness = None


class ForgetOp(Op):
    """Remove a record, whoever owns it."""

    verb = Verb.FORGET
    __slots__ = ()

    def __init__(self, wire: bytes) -> None:
        self.wire = wire
        self.witness = None


class Holding(NamedTuple):
    """One acquisition of a key: an owner may hold a key twice, and then under two fences.

    Of a state machine the owner is the last change, and the fence is the version.
    """

    owner: bytes
    fence: int


class AdoptOp(Op):
    """Put a record that was made elsewhere, during an outage, where it belongs."""

    verb = Verb.ADOPT
    __slots__ = ("base", "record")

    def __init__(self, wire: bytes, record: Stored, base: Holding | None) -> None:
        self.wire = wire
        self.witness = None
        self.record = record
        self.base = base
        """The holding that the store last had, as far as known: it gives way."""

    @property
    def weight(self) -> int:
        """The payload's size."""
        return len(self.record.payload)


def mark_unsure(ops: Iterable[Op]) -> None:
    """Note that operations were sent and have no reply: to send them again must not act twice."""
    for op in ops:
        if isinstance(op, ReleaseOp | SettleOp | TransitionOp):
            op.unsure = True


def with_fingerprint(owner: bytes, fingerprint: bytes) -> bytes:
    """Join an owner field and a fingerprint as they stand in a record."""
    return bytes((owner[0] | 128,)) + owner[1:] + fingerprint


class Verdict:
    """The answer to one claim. One object may answer many claims of a batch: never mutated.

    `left_ms` is the time until the state ends: of the lease, or of the settled record.
    `fresh` is False where the same owner only got its own claim back, and on what the engine
    answered from another claim's reply.
    """

    __slots__ = ("attempt", "degraded", "fence", "fresh", "left_ms", "outcome", "payload", "short", "value")

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
        """The payload decoded, where that is done and can be shared."""
        self.fresh = fresh
        self.degraded = degraded
        self.short = False
        """Acquired, and too few replicas confirmed it (`replicas=`); set by the store before it answers."""


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
    """The answer to one adoption, and whose record stands there now.

    `code`: OK (ours, and nobody lost), OUTRANKED (another's stands, ours is lost), OVERRULED (ours
    stands, another's is lost), FOREIGN.
    """

    __slots__ = ("code", "fence", "owner", "settled")

    def __init__(self, code: Code, owner: bytes, fence: int, *, settled: bool = False) -> None:
        self.code = code
        self.owner = owner
        """The owner field of the record that stood there; empty where there was no record."""
        self.fence = fence
        self.settled = settled
        """The record that stood there was a success or a failure."""


class Stored:
    """A record as a store holds it. `state` is a letter: I P W S F R, or M for a machine (see `lua/`)."""

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


Reply = (
    Verdict | Moved | Stored | Adopted | Code | UnavailableError | ResultTooLargeError | ForeignRecordError
)
"""Claim: Verdict, or FOREIGN. Transition: Moved. Read: Stored, ABSENT or FOREIGN. Adopt: Adopted. All others: Code.
Any: UnavailableError, where one operation of a batch is refused alone. UNCONFIRMED is OK that too few
replicas confirmed. ResultTooLargeError: a store with a limit of its own refuses a result. ForeignRecordError: the
key holds a value that is larger than the store's limit for a record; `Code.TOO_LARGE` is a script's word alone."""
