"""The operations that a store executes, one class for each verb, and their replies.

Times are milliseconds, keys and owners are bytes, so that a store can send them unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, cast

from ..errors import ForeignRecordError, ResultTooLargeError, UnavailableError
from ..model import Outcome
from .codes import Code
from .id_place import IdPlace
from .records import Holding, Stored, tail_of
from .replies import Adopted, Redirect, StoredForm, TransitionReply, Weight
from .terms import Terms
from .verbs import Resend, Verb


class Op:
    """One operation on one key. Only the engine uses `future`; a store never touches it."""

    verb: ClassVar[Verb]
    __slots__ = ("at", "future", "hops", "wire", "witness")

    hops: int
    """How often it was sent on to another node of the store; set if the store has nodes."""
    wire: bytes
    at: float
    """When the engine accepted the operation, in the loop's time."""
    future: asyncio.Future[Any]
    witness: Witness | None
    """Called with the store's reply before the caller goes on; may change the reply. A claim has a witness only if
    `followers` is a list, because the claim's path does not look for witnesses."""

    def let_witness(self, witness: Witness) -> None:
        """Let the engine call `witness` once the store has answered, before the caller goes on."""
        self.witness = witness

    @property
    def remembering(self) -> IdPlace | None:
        """The place of the id in the ledger that takes part in the operation on a record; None without a ledger."""
        return None

    def of_id(self) -> Op | None:
        """Return the operation on a ledger's id that this one is, or that a claim causes; None for other operations.

        A completion causes none: the store that gave the key away takes the success, even if a policy has the id.
        """
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
        """The result that the operation records, if its verb has one."""
        return b""


class ClaimOp(Op):
    """Claim, redeem or consume a key.

    Attributes:
        unless: the place of the key's id in a ledger: the key is claimed unless the ledger remembers it. The reply
            may then be STALE: what is known of the ledger is too old, and nothing was done. None without a ledger;
            its `terms` are then not `remembered`.
    """

    verb = Verb.CLAIM
    __slots__ = (
        "fingerprint",
        "floor_us",
        "followers",
        "key",
        "named",
        "owner",
        "reader",
        "resent",
        "tail",
        "terms",
        "unless",
    )

    key: str
    """The key that the caller wrote."""
    resent: bool
    """Set, and True, if this claim was sent once without a reply: that copy may reach the store later."""
    floor_us: float
    """Set by the engine for a caller-chosen owner: a time that the server had not passed when the claim was sent."""

    def __init__(
        self,
        wire: bytes,
        terms: Terms,
        owner: bytes,
        fingerprint: bytes | None,
        unless: IdPlace | None = None,
    ) -> None:
        self.wire = wire
        self.terms = terms
        self.owner = owner
        self.fingerprint = fingerprint
        self.unless = unless
        self.tail = owner if fingerprint is None else tail_of(owner, fingerprint)
        # For the engine: the claims that follow this claim; whether the caller chose the owner.
        self.followers: list[ClaimOp] | None = None
        self.named = False
        # For the claim: reads results of the type that the caller declared; None without one. No store gets it.
        self.reader: Any = None

    def draw_again(self, owner: bytes) -> None:
        """Change the owner to another one that the library generated; only before the claim is sent."""
        self.owner = owner
        self.tail = tail_of(owner, self.fingerprint)

    def copy(self, terms: Terms | None = None) -> ClaimOp:
        """Return a claim of the same key for the same owner, with the same terms by default."""
        op = ClaimOp(
            self.wire, self.terms if terms is None else terms, self.owner, self.fingerprint, self.unless
        )
        op.named, op.reader = self.named, self.reader
        if hasattr(self, "key"):
            op.key = self.key
        return op

    def promote_follower(self) -> ClaimOp | None:
        """Return the first follower whose caller still waits. The others follow that claim from now on."""
        followers, self.followers = self.followers or [], None
        living = [follower for follower in followers if not follower.future.done()]
        if not living:
            return None
        leader, rest = living[0], living[1:]
        if leader.followers is not None:
            leader.followers = rest
        elif rest:
            leader.followers, leader.witness = rest, None
        return leader

    @property
    def held_key(self) -> tuple[bytes, bytes]:
        """The key and the owner field that identify the claim's holding."""
        return self.wire, self.owner

    @property
    def remembering(self) -> IdPlace | None:
        """`unless`."""
        return self.unless

    def of_id(self) -> Op | None:
        """Return the look whether the ledger remembers the id; None without a ledger."""
        return None if self.unless is None else cast(Op, self.unless.seen())

    # The later operations of a claim

    @property
    def success_ms(self) -> int:
        """Milliseconds for which a success is remembered."""
        if self.unless is not None:
            return self.unless.success_ms
        return self.terms.ttl_ms

    @property
    def record_ms(self) -> int:
        """Milliseconds for which the record of a success stays; a ledger remembers it for longer."""
        if self.unless is not None:
            return self.unless.record_ms
        return self.terms.ttl_ms

    def completion(self, fence: int, keep_ms: int, payload: bytes) -> SettleOp:
        """Return the operation that completes the claim. Its ledger also remembers the id."""
        return SettleOp(
            self.wire, self.owner, fence, succeeded=True, keep_ms=keep_ms, payload=payload, also=self.unless
        )

    def let_witness(self, witness: Witness) -> None:
        """Let the engine call `witness`; see `Op.let_witness`."""
        self.witness = witness
        self.followers = (
            NOBODY  # so that the engine delivers the reply by `_claim_done`, which calls witnesses
        )


READ_WEIGHT: Final = 32 * 1024
NOBODY: Final[list[ClaimOp]] = []
"""Shared, never appended to: the followers of a claim that has none, if its reply is not only for a future."""


class OwnerOp(Op):
    """What an owner does to its claim. `fence`: 0 for any acquisition of this owner."""

    __slots__ = ("fence", "owner")

    owner: bytes
    fence: int


class SettleOp(OwnerOp):
    """Complete or fail a claim.

    Attributes:
        also: the place of the key's id in a ledger, which remembers it in the same step; the reply may then be STALE
            or FULL, and nothing was done. None without a ledger, and for a failure.
    """

    verb = Verb.SETTLE
    __slots__ = ("also", "keep_ms", "payload", "resent", "succeeded")

    def __init__(
        self,
        wire: bytes,
        owner: bytes,
        fence: int,
        *,
        succeeded: bool,
        keep_ms: int,
        payload: bytes,
        also: IdPlace | None = None,
    ) -> None:
        self.wire = wire
        self.witness = None
        self.owner = owner
        self.fence = fence
        self.succeeded = succeeded
        self.keep_ms = keep_ms
        self.payload = payload
        self.also = also
        self.resent = False
        """True if it was sent without a reply: it may have settled the key, and the record may have expired."""

    @property
    def remembering(self) -> IdPlace | None:
        """`also`."""
        return self.also

    @property
    def weight(self) -> int:
        """The size of the payload in bytes."""
        return len(self.payload)

    @property
    def result(self) -> bytes:
        """The payload."""
        return self.payload


class ReleaseOp(OwnerOp):
    """Free a claim. `consumed`: a token that this owner consumed in one step is also freed: it is issued again."""

    verb = Verb.RELEASE
    __slots__ = ("consumed", "resent")

    def __init__(self, wire: bytes, owner: bytes, fence: int, *, consumed: bool = False) -> None:
        self.wire = wire
        self.witness = None
        self.owner = owner
        self.fence = fence
        self.consumed = consumed
        self.resent = False
        """True if it was sent without a reply: it may have freed the key, and another owner may hold it."""


class RenewOp(OwnerOp):
    """Give a claim a lease that runs from now. Its record lives for at least `keep_ms`, and never ends sooner."""

    verb = Verb.RENEW
    __slots__ = ("keep_ms", "lease_ms")

    def __init__(self, wire: bytes, owner: bytes, fence: int, lease_ms: int, keep_ms: int) -> None:
        self.wire = wire
        self.witness = None
        self.owner = owner
        self.fence = fence
        self.lease_ms = lease_ms
        self.keep_ms = keep_ms


class TouchOp(OwnerOp):
    """Let a claim's record live for at least `keep_ms` from now. The lease does not change."""

    verb = Verb.TOUCH
    __slots__ = ("keep_ms",)

    def __init__(self, wire: bytes, owner: bytes, fence: int, keep_ms: int) -> None:
        self.wire = wire
        self.witness = None
        self.owner = owner
        self.fence = fence
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
    """Move a state machine. `change`: 10 bytes that identify this call, to recognise a retry."""

    verb = Verb.TRANSITION
    __slots__ = ("change", "initial", "keep_ms", "resent", "sources", "to", "version")

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
        self.resent = False
        """True if it was sent without a reply: it may have moved the machine, and other calls may have done so since.

        Then it acts only if the record proves that it did not act before; otherwise the answer is UNSURE.
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
        """An estimate of the result's bytes: a batch of 256 large results takes 67 MB."""
        return READ_WEIGHT


class ForgetOp(Op):
    """Remove a record, without asking for its owner. `reason`: the caller's, for a sidecar's log."""

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


def mark_resent(ops: Iterable[Op]) -> None:
    """Mark operations that were sent without a reply, so that they do not act twice when they are sent again."""
    for op in ops:
        if op.verb in _MARKED:
            cast(Any, op).resent = True


# Replies


class Verdict:
    """The answer to one claim. Never mutated, because one object may answer many claims of a batch.

    `left_ms` is the time until the lease or the settled record ends.
    `fresh` is False if the same owner got its own claim back, or if the engine answered from
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
        "underreplicated",
        "value",
    )

    present: bytes
    """The owner field of the record that a duplicate's claim has met; not set if it met no record, or if the claim is
    acquired. It is not parsed here; `former_trace` reads its notes."""

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
        """The codec and the decoded payload, if it is decoded already and can be shared. Gates have other codecs."""
        self.former = b""
        """The `proof` of the fence and the owner field before this acquisition; empty for a first one, or if the
        store's first reply was lost."""
        self.fresh = fresh
        self.degraded = degraded
        self.underreplicated = False
        """True if too few replicas confirmed the acquisition (`replicas=`); set by the store before it answers."""


Reply = (
    Verdict
    | TransitionReply
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
"""A claim gets a Verdict or FOREIGN; a transition a TransitionReply; a read a Stored, ABSENT or FOREIGN; an adoption
Adopted; the creation of a ledger a StoredForm; the weighing of a bucket a Weight or ABSENT; every other operation a
Code. UNCONFIRMED means OK, but too few replicas confirmed the change. Any operation may get UnavailableError (it
alone was refused; RefusedAlone if certainly nothing was done, scripts say REFUSED), ResultTooLargeError (the result
is over the store's own limit) or ForeignRecordError (the key's value is over the store's limit for a record; scripts
say TOO_LARGE). A node of a store answers Redirect if the operation belongs to another node; scripts say ELSEWHERE."""

Witness = Callable[[Op, Reply], Reply]
"""Called with the store's reply before the caller gets it; returns the reply for the caller."""
