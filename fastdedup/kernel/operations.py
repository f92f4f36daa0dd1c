"""The operations that a store executes, one class for each verb. Their replies are in `replies.py`.

Times are milliseconds, keys and owners are bytes, so that a store can send them unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import lru_cache
from typing import Any, ClassVar, Final, cast

from ..errors import UnavailableError
from .records import Holding, tail_of
from .replies import Code, Reply, Stored
from .verbs import Resend, Verb


class Mode(StrEnum):
    """The ways to claim a key."""

    CLAIM = "claim"
    REDEEM = "redeem"
    """Claim only a key that was issued."""
    CONSUME = "consume"
    """Redeem a key and record its success in one step."""


class Terms:
    """The settings that claims share; a batch states them once. Compared by identity: make them with `terms()`."""

    __slots__ = (
        "consumes",
        "header",
        "keep_ms",
        "lease_ms",
        "mode",
        "redeems",
        "remembered",
        "shared",
        "watch",
    )

    def __init__(
        self, mode: Mode, lease_ms: int, keep_ms: int, watch: bool, remembered: bool = False
    ) -> None:
        self.mode = mode
        self.lease_ms = lease_ms
        self.keep_ms = keep_ms
        """How long the record lives: longer than the lease, so that a takeover counts attempts."""
        self.watch = watch
        """The claimant waits: the operation that frees or settles the key must publish that."""
        # Looked up once here: naming an enum's member costs 50 ns, and a claim would do so several times.
        self.consumes = mode is Mode.CONSUME
        self.redeems = mode is Mode.REDEEM
        self.shared = mode is Mode.CLAIM and not remembered
        """Equal concurrent claims may share one operation; each use of a token needs an answer of its own.

        False too for claims whose success a ledger remembers: these share one in another way, so that plain claims
        need not ask which they are.
        """
        self.remembered = remembered
        """A ledger remembers the success: these are the terms of a `RememberedClaimOp`."""
        self.header = (str(lease_ms), str(keep_ms), mode.value, "1" if watch else "0")


terms = lru_cache(maxsize=4096)(Terms)


class Op:
    """One operation on one key. Only the engine uses `future`; a store never touches it."""

    verb: ClassVar[Verb]
    __slots__ = ("at", "future", "hops", "wire", "witness")

    hops: int
    """How often it was sent on to another part of the store; set where the store is made of parts."""
    wire: bytes
    at: float
    """When the engine accepted the operation, in the loop's time."""
    future: asyncio.Future[Any]
    witness: Witness | None
    """Called with the store's reply before the caller goes on; may change the reply. A claim has a witness only where
    `followers` is a list, because the claim's path does not look for witnesses."""

    def let_witness(self, witness: Witness) -> None:
        """Let the engine call `witness` once the store has answered, before the caller goes on."""
        self.witness = witness

    def of_id(self) -> Op | None:
        """Return the operation on one id of a ledger that this one is, or brings about; None for other operations."""
        return None

    def take(self, reply: Reply) -> None:
        """Give the reply to the caller of this operation."""
        self.future.set_result(reply)

    def fail(self, error: BaseException) -> None:
        """Give an error to the caller of this operation."""
        self.future.set_exception(error)

    @property
    def weight(self) -> int:
        """Bytes that this operation adds to its batch beyond keys and owners."""
        return 0

    @property
    def result(self) -> bytes:
        """The result that it records, if its verb has one."""
        return b""


class ClaimOp(Op):
    """Claim, redeem or consume a key."""

    verb = Verb.CLAIM
    __slots__ = (
        "counted",
        "fingerprint",
        "floor_us",
        "followers",
        "key",
        "named",
        "owner",
        "tail",
        "terms",
        "unsure",
    )

    key: str
    """The key as the caller wrote it."""
    counted: bool
    """Set by the engine for a caller-chosen owner: whether this claim is counted among those of the owner."""
    unsure: bool
    """Set, and True, if a sending of this claim got no reply: a copy of it may reach the store later."""
    floor_us: float
    """Set by the engine for a caller-chosen owner: a time that the server had not passed when the claim was sent."""

    def __init__(self, wire: bytes, terms: Terms, owner: bytes, fingerprint: bytes | None) -> None:
        self.wire = wire
        self.terms = terms
        self.owner = owner
        self.fingerprint = fingerprint
        self.tail = owner if fingerprint is None else tail_of(owner, fingerprint)
        # For the engine: the claims that follow this claim; whether the caller chose the owner.
        self.followers: list[ClaimOp] | None = None
        self.named = False

    def draw_again(self, owner: bytes) -> None:
        """Claim on behalf of another owner that the library drew; not once it is sent."""
        self.owner = owner
        self.tail = owner if self.fingerprint is None else tail_of(owner, self.fingerprint)

    def copy(self, terms: Terms | None = None) -> ClaimOp:
        """Return an operation that asks for the same key for the same owner, in the same terms by default."""
        op = ClaimOp(self.wire, self.terms if terms is None else terms, self.owner, self.fingerprint)
        op.named = self.named
        if hasattr(self, "key"):
            op.key = self.key
        return op

    @property
    def held_key(self) -> tuple[bytes, bytes]:
        """The key and the owner field by which what it has acquired is found."""
        return self.wire, self.owner

    # What follows from a claim; a claim whose success a ledger remembers says it otherwise

    @property
    def success_ms(self) -> int:
        """Milliseconds for which a success is remembered."""
        # A claim's own ttl is what its terms keep beyond the lease.
        return self.terms.keep_ms - self.terms.lease_ms

    @property
    def record_ms(self) -> int:
        """Milliseconds for which the record of a success stays."""
        return self.terms.keep_ms - self.terms.lease_ms

    def completion(self, fence: int, keep_ms: int, payload: bytes) -> SettleOp:
        """Return the operation that completes the claim."""
        return SettleOp(self.wire, self.owner, fence, succeeded=True, keep_ms=keep_ms, payload=payload)

    async def find_again(self, code: Code | None, *, moves: bool) -> bool:
        """Find out where the key lies now. True if it has moved, which this one never does."""
        return False

    def let_witness(self, witness: Witness) -> None:
        """Let the engine call `witness`, as `Op.let_witness` does."""
        self.witness = witness
        self.followers = (
            NOBODY  # so that the engine delivers the reply by `_claim_done`, which calls witnesses
        )


READ_WEIGHT: Final = 32 * 1024
NOBODY: Final[list[ClaimOp]] = []
"""The followers of a claim that has none, and whose reply is not only for a future: shared, and never appended to."""


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
        """True where it was sent and got no reply: it may have settled the key, and the record may have expired."""

    def rely_on(self, claim: ClaimOp) -> None:
        """Rely on what the claim has found out by `ClaimOp.find_again`, if the key has not moved."""

    @property
    def weight(self) -> int:
        """The size of the payload in bytes."""
        return len(self.payload)

    @property
    def result(self) -> bytes:
        """The payload."""
        return self.payload


class ReleaseOp(Op):
    """Free a claim. `consumed`: a token that this owner consumed in one step is also freed: it is issued again."""

    verb = Verb.RELEASE
    __slots__ = ("consumed", "fence", "owner", "unsure")

    def __init__(self, wire: bytes, owner: bytes, fence: int, *, consumed: bool = False) -> None:
        self.wire = wire
        self.witness = None
        self.owner = owner
        self.fence = fence
        self.consumed = consumed
        self.unsure = False
        """True where it was sent and got no reply: it may have freed the key, and another owner may hold the key."""


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
        """True where it was sent and got no reply: it may have moved the machine, and other calls may have since.

        Then it acts only where the record proves that it did not act before; otherwise the answer is UNSURE.
        """


class ReadOp(Op):
    """Read a record."""

    verb = Verb.READ
    __slots__ = ()

    def __init__(self, wire: bytes) -> None:
        self.wire = wire
        self.witness = None

    @property
    def weight(self) -> int:
        """Some bytes of the result that it may bring: a batch of 256 large ones takes 67 MB."""
        return READ_WEIGHT


class ForgetOp(Op):
    """Remove a record, without asking for its owner. `reason`: of who asks for it, for a sidecar's log."""

    verb = Verb.FORGET
    __slots__ = ("reason",)

    def __init__(self, wire: bytes, reason: str = "") -> None:
        self.wire = wire
        self.witness = None
        self.reason = reason


class AdoptOp(Op):
    """Write a record that was made elsewhere during an outage, unless the store's own record outranks it."""

    verb = Verb.ADOPT
    __slots__ = ("base", "record")

    def __init__(self, wire: bytes, record: Stored, base: Holding | None) -> None:
        self.wire = wire
        self.witness = None
        self.record = record
        self.base = base
        """The last holding that the store is known to have had: the new record replaces it."""

    @property
    def weight(self) -> int:
        """The size of the payload in bytes."""
        return len(self.record.payload)

    @property
    def result(self) -> bytes:
        """The payload of the record."""
        return self.record.payload


def was_accepted(op: Op) -> bool:
    """True if the engine took the operation, so that the store may have got it; False if it was refused."""
    return hasattr(op, "at")


_MARKED: Final = tuple(verb for verb in Verb if verb.row.resend is Resend.MARKED)


def mark_unsure(ops: Iterable[Op]) -> None:
    """Mark operations that were sent and got no reply, so that sending them again does not act twice."""
    for op in ops:
        if op.verb in _MARKED:
            cast(Any, op).unsure = True


MAX_HOPS: Final = 12
"""How often an operation is sent on at most. A slot that moves costs up to four; more means a faulty Cluster."""


def on_the_move(name: str) -> UnavailableError:
    """Return the error for an operation that was sent on too often."""
    return UnavailableError(f"{name}: the key's slot is being moved")


Witness = Callable[[Op, Reply], Reply]
"""Hears the store's reply before the caller does; returns the reply that the caller gets."""
