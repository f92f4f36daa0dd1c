"""The operations on ledgers. `lua/_ledger.lua` describes the layout of what they work on."""

from __future__ import annotations

from typing import Any, Final, Protocol

from ..errors import UnavailableError
from ..kernel.codes import Code
from ..kernel.operations import READ_WEIGHT, ClaimOp, Op, SettleOp
from ..kernel.terms import Terms
from ..kernel.verbs import Verb
from .forms import SLOTS, STRAYS, LedgerForm
from .ids import NONCE_BYTES

_EXPIRY_SLOTS: Final = 125
"""Slots after which a bucket expires, from when it was written anew; see `_ledger.lua`."""
_NAMED: Final = (4, 200)
"""Entries of a bucket whose calls are known by their nonces, at least and at most."""
_NAMED_IN_ALL: Final = 100_000
"""Entries of a ledger whose calls are known: as many as a fast consumer brings in half a second."""
_FREE_PLACES: Final = {"set": 12, "append": 40}
"""Inserts that fill a free place of a bucket, before it is written anew."""
_MOST: Final = 2000
"""Entries in a bucket at most; 18 times as many as planned. A bucket of 2,000 wide ones has 34 kB."""
_CELL: Final = 64
"""Ids of a cell, in a dense ledger."""
FOREVER_MS: Final = 1 << 52
"""Later than any server's time, and exact in Lua."""
ECHO_MS: Final = 60_000
"""Milliseconds for which the record of a success stays that a ledger remembers: a completion may come twice."""
IdPlace = tuple[bytes, bytes, "LedgerTerms"]
"""Where an id's entry lies: the key of its bucket, its digest, and what is known of the ledger."""


class FindsIds(Protocol):
    """A ledger, as far as a claim concerns it."""

    async def place_of(self, id: Any, found: Code | None = None) -> IdPlace:
        """Return where an id's entry lies. `found`: the store's answer to the place that was returned last."""

    def distrust(self) -> None:
        """Read the form again before the next call: the store may have come back without its data."""


class LedgerTerms:
    """What the operations on a ledger share; a batch states it once. Compared by identity.

    Attributes:
        until_ms: the server's time until which these may be relied on: then the ledger's form is asked for again.
        from_ms: the server's time from which no id is remembered by these any more; 0 but for a former form's.
    """

    __slots__ = (
        "from_ms",
        "keep_ms",
        "most",
        "named",
        "seen_fill",
        "slot_us",
        "until_ms",
        "width",
        "window_ms",
        "young",
    )

    def __init__(self, form: LedgerForm, write: str, until_ms: int) -> None:
        self.window_ms = form.window_ms
        self.slot_us = form.window_ms * 1000 // SLOTS
        self.keep_ms = self.slot_us * _EXPIRY_SLOTS // 1000
        self.width = form.width
        self.from_ms = 0
        if form.dense:
            self.young, self.named, self.most = form.chunk // _CELL, 1, STRAYS
            self.until_ms = until_ms
            self.seen_fill = 0.0
            return
        least, most = _NAMED
        self.named = min(most, max(least, -(-_NAMED_IN_ALL // form.buckets)))
        self.young = self.named + max(_FREE_PLACES[write], self.named // 4)
        self.most = _MOST
        self.until_ms = until_ms
        self.seen_fill = 0.0
        """Entries in the buckets that were written lately, a moving mean; set by a store that knows.

        Of a dense ledger only those outside the cells are counted.
        """

    def saw_fill(self, entries: int, buckets: int) -> None:
        """Take in how many entries these buckets have."""
        share = buckets / (buckets + 2000)
        self.seen_fill += (entries / buckets - self.seen_fill) * share


class IdOp(Op):
    """An operation on one id of a ledger.

    Args:
        wire: the bucket's store key.
        entry: the digest, and behind it the nonce of a call.
        terms: the ledger's.
        id: the id itself, for a policy: stores do not look at it.
    """

    __slots__ = ("entry", "id", "terms")

    def __init__(self, wire: bytes, entry: bytes, terms: LedgerTerms, id: bytes = b"") -> None:
        self.wire = wire
        self.witness = None
        self.entry = entry
        self.terms = terms
        self.id = id

    def of_id(self) -> Op:
        """Return this operation."""
        return self

    @property
    def place(self) -> bytes:
        """The bucket's key and the digest, which name the id."""
        return self.wire + self.entry[: self.terms.width]

    @property
    def held_key(self) -> tuple[bytes, bytes]:
        """The key and the entry by which what it has remembered is found; see `ClaimOp.held_key`."""
        return self.wire, self.entry


class FirstOp(IdOp):
    """Remember an id. OK if this call is the first; ALREADY, STALE or FULL if it is not remembered for this call."""

    verb = Verb.FIRST
    __slots__ = ("answer",)

    answer: Any
    """The store's reply, or the error in its place; later the verdict. Set and read by the call alone."""


class SeenOp(IdOp):
    """Look whether an id is remembered: ALREADY or ABSENT; STALE.

    Without a nonce `entry` is the digest; with one, OK says that this call has remembered the id.
    """

    verb = Verb.SEEN
    __slots__ = ()


class ForgetIdOp(IdOp):
    """Remove an id: OK, ABSENT or STALE. `entry`: the digest; with a nonce only what that call has remembered.

    `reason`: see `ForgetOp`.
    """

    verb = Verb.FORGET_ID
    __slots__ = ("reason", "until_ms")

    def __init__(
        self, wire: bytes, entry: bytes, terms: LedgerTerms, id: bytes = b"", reason: str = ""
    ) -> None:
        super().__init__(wire, entry, terms, id)
        self.reason = reason
        # What a call has remembered is taken back where it lies, also if the ledger has changed since.
        self.until_ms = FOREVER_MS if self.takes_back else terms.until_ms

    @property
    def takes_back(self) -> bool:
        """True if it removes what one call has remembered, without being asked to by a user."""
        return len(self.entry) > self.terms.width


class LedgerOp(Op):
    """Create a ledger, or read its form: the reply is a `StoredForm`. `former`: the form to replace; empty: none.

    With an empty `form` it is only read: the reply may be ABSENT. With `ttl_ms=0` its life is not prolonged.
    Later than `until_ms` by the server's time nothing is stored: the reply is STALE.
    """

    verb = Verb.LEDGER
    __slots__ = ("form", "former", "ttl_ms", "until_ms")

    def __init__(
        self, wire: bytes, form: bytes, ttl_ms: int, former: bytes = b"", until_ms: int = FOREVER_MS
    ) -> None:
        self.until_ms = until_ms
        self.wire = wire
        self.witness = None
        self.form = form
        self.ttl_ms = ttl_ms
        self.former = former


class RememberedClaimOp(ClaimOp):
    """Claim a key whose success a ledger remembers.

    Attributes:
        bucket: the key of the bucket that the key's id belongs to. The record's key begins with it.
        digest: the id's digest.
        ledger_terms: what is known of the ledger.
        ledger: finds the place of the id anew; None for an operation that is sent.
    """

    verb = Verb.CLAIM_REMEMBERED
    __slots__ = ("bucket", "digest", "ledger", "ledger_terms")

    def __init__(
        self, wire: bytes, terms: Terms, owner: bytes, fingerprint: bytes | None, place: IdPlace
    ) -> None:
        super().__init__(wire, terms, owner, fingerprint)
        self.witness = None
        self.bucket, self.digest, self.ledger_terms = place
        self.ledger: FindsIds | None = None

    @classmethod
    def of(cls, claim: ClaimOp, wire: bytes, terms: Terms, place: IdPlace) -> RememberedClaimOp:
        """Return an operation that asks for the key of another claim, on behalf of the same owner."""
        op = cls(wire, terms, claim.owner, claim.fingerprint, place)
        op.key, op.named = claim.key, claim.named
        return op

    @property
    def place(self) -> IdPlace:
        """Where the id's entry lies."""
        return self.bucket, self.digest, self.ledger_terms

    @property
    def id(self) -> bytes:
        """The id itself, for a policy: stores do not look at it. Empty if it is not known."""
        return self.key.encode() if hasattr(self, "key") else b""

    def seen(self) -> SeenOp:
        """Return the operation that looks whether the ledger remembers the id."""
        return SeenOp(self.bucket, self.digest, self.ledger_terms, self.id)

    def of_id(self) -> Op:
        """Return what `seen` does."""
        return self.seen()

    @property
    def success_ms(self) -> int:
        """Milliseconds for which a success is remembered: until the slot after the window is over."""
        return self.ledger_terms.window_ms + self.ledger_terms.slot_us // 1000 + 1

    @property
    def record_ms(self) -> int:
        """Milliseconds for which the record of a success stays: the ledger remembers it for longer."""
        return ECHO_MS

    def completion(self, fence: int, keep_ms: int, payload: bytes) -> SettleOp:
        """Return the operation that lets the ledger remember the key, and keeps the record for a moment."""
        return RememberedSettleOp(
            self.wire, self.owner, fence, keep_ms=keep_ms, payload=payload, place=self.place, id=self.id
        )

    async def find_again(self, code: Code | None, *, moves: bool) -> bool:
        """Rely on what the ledger is now: the store has said STALE, or it has no room. True if the id has moved.

        Args:
            code: the store's answer, if it was asked.
            moves: go where the ledger's present form puts the id. So does a claim that is not made yet, and one that
                a policy has given: if the policy had created the ledger itself, and the store has another form, it
                takes its records there.

        Raises:
            UnavailableError: the store does not tell, or the id has moved and the claim may not.
            LedgerFullError: the bucket has no room.
        """
        assert self.ledger is not None
        bucket, digest, terms = await self.ledger.place_of(self.key, code)
        moved = (bucket, digest) != (self.bucket, self.digest)
        if moved and not moves:
            raise UnavailableError(f"the ledger of {self.key!r} was founded anew meanwhile; claim it again")
        self.wire = bucket + self.wire[len(self.bucket) :]
        self.bucket, self.digest, self.ledger_terms = bucket, digest, terms
        return moved

    def copy(self, terms: Terms | None = None) -> RememberedClaimOp:
        """Return as `ClaimOp.copy`."""
        return RememberedClaimOp.of(self, self.wire, self.terms if terms is None else terms, self.place)


class RememberedSettleOp(SettleOp):
    """Complete such a claim: the ledger remembers the id, and the record stays for `keep_ms` more.

    Attributes:
        bucket: as of the claim.
        entry: the digest and a nonce.
        ledger_terms: as of the claim.
        id: the id itself, for a policy: stores do not look at it.
    """

    verb = Verb.SETTLE_REMEMBERED
    __slots__ = ("bucket", "entry", "id", "ledger_terms")

    def __init__(
        self,
        wire: bytes,
        owner: bytes,
        fence: int,
        *,
        keep_ms: int,
        payload: bytes,
        place: IdPlace,
        id: bytes = b"",
    ) -> None:
        super().__init__(wire, owner, fence, succeeded=True, keep_ms=keep_ms, payload=payload)
        self.id = id
        self.bucket, digest, self.ledger_terms = place
        # No call of `Ledger.first` has this nonce: an id that was completed is another call's.
        self.entry = digest + bytes(NONCE_BYTES)

    def rely_on(self, claim: ClaimOp) -> None:
        """Rely on what the claim has found out about its ledger."""
        assert isinstance(claim, RememberedClaimOp)
        self.ledger_terms = claim.ledger_terms

    @property
    def digest(self) -> bytes:
        """The id's digest."""
        return self.entry[:-NONCE_BYTES]


def without_ledger(op: RememberedClaimOp | RememberedSettleOp) -> ClaimOp | SettleOp:
    """Return an operation that does to the record alone what this one does to it."""
    if isinstance(op, RememberedClaimOp):
        return ClaimOp.copy(op)
    return SettleOp(op.wire, op.owner, op.fence, succeeded=True, keep_ms=op.keep_ms, payload=op.payload)


class WeighOp(Op):
    """Count what a bucket holds: the reply is a `Weight`, or ABSENT."""

    verb = Verb.WEIGH
    __slots__ = ("terms",)

    def __init__(self, wire: bytes, terms: LedgerTerms) -> None:
        self.wire = wire
        self.witness = None
        self.terms = terms

    @property
    def weight(self) -> int:
        """As much as a read's: the store looks at each entry, and a call for statistics weighs 1,000 buckets."""
        return READ_WEIGHT
