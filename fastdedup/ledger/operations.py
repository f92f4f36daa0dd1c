"""The operations on ledgers. `lua/_ledger.lua` describes the layout of their data."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

from ..kernel.codes import Code
from ..kernel.operations import READ_WEIGHT, ClaimOp, Op, SettleOp, was_accepted
from ..kernel.replies import RefusedAlone
from ..kernel.verbs import Verb
from .forms import SLOTS, STRAYS, LedgerForm
from .ids import NONCE_BYTES

_EXPIRY_SLOTS: Final = 125
"""Slots after which a bucket expires, counted from its last rewrite; see `_ledger.lua`."""
_NAMED: Final = (4, 200)
"""The least and the most entries of a bucket whose calls are known by their nonces."""
_NAMED_IN_ALL: Final = 100_000
"""Entries of a ledger whose calls are known: as many as a fast consumer brings in half a second."""
_FREE_PLACES: Final = {"set": 12, "append": 40}
"""Inserts that fill a free place of a bucket, before it is written anew."""
_MOST: Final = 2000
"""The most entries in a bucket: 18 times as many as planned, or 12 of wide ones. 2,000 wide ones have 34 kB."""
_CELL: Final = 64
"""Ids of a cell, in a dense ledger."""
FOREVER_MS: Final = 1 << 52
"""Later than any server's time, and exact in Lua."""
ECHO_MS: Final = 60_000
"""Milliseconds for which a success's record stays after a ledger remembers it: a completion may come twice."""


class FindsIds(Protocol):
    """The part of a ledger that a claim uses."""

    async def place_of(self, id: Any, found: Code | None = None) -> LedgerPlace:
        """Return the place of an id's entry. `found`: the store's answer to the place that was returned last."""

    def distrust(self) -> None:
        """Read the form again before the next call: the store may have come back without its data."""


class LedgerTerms:
    """The settings that the operations on a ledger share; a batch states them once. They are compared by identity.

    Attributes:
        until_ms: the server's time until which these are valid: then the ledger's form is read again.
        from_ms: the server's time from which these remember no more ids; 0, except for a former form's.
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
        self.until_ms = until_ms
        if form.dense:
            self.young, self.named, self.most = form.chunk // _CELL, 1, STRAYS
        else:
            least, most = _NAMED
            self.named = min(most, max(least, -(-_NAMED_IN_ALL // form.buckets)))
            self.young = self.named + max(_FREE_PLACES[write], self.named // 4)
            self.most = _MOST
        self.seen_fill = 0.0
        """Entries in the buckets that were written lately, a moving mean; set by a store that knows.

        Of a dense ledger only those outside the cells are counted.
        """

    def saw_fill(self, entries: int, buckets: int) -> None:
        """Note how many entries these buckets have."""
        share = buckets / (buckets + 2000)
        self.seen_fill += (entries / buckets - self.seen_fill) * share


class IdOp(Op):
    """An operation on one id of a ledger.

    Args:
        wire: the bucket's store key.
        entry: the digest, then the nonce of a call.
        terms: the ledger's terms.
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
        """The key and the entry that identify the remembered id; see `ClaimOp.held_key`."""
        return self.wire, self.entry


class LedgerPlace(NamedTuple):
    """The place of a key's id, for `ClaimOp.unless` and `SettleOp.also`: see `IdPlace`.

    Attributes:
        bucket: the key of the bucket that the id belongs to. The record's key begins with it.
        digest: the id's digest.
        terms: the known facts of the ledger.
        id: the id itself, for a policy; empty if it is not known.
        ledger: finds the place anew; None for an operation that is only executed.
    """

    bucket: bytes
    digest: bytes
    terms: LedgerTerms
    id: bytes = b""
    ledger: FindsIds | None = None

    @property
    def name(self) -> bytes:
        """The bucket's key and the digest."""
        return self.bucket + self.digest

    @property
    def entry(self) -> bytes:
        """The entry of a success. No call of `Ledger.first` has its nonce: such an id is another call's."""
        return self.digest + bytes(NONCE_BYTES)

    @property
    def success_ms(self) -> int:
        """Milliseconds for which a success is remembered: until the slot after the window is over."""
        return self.terms.window_ms + self.terms.slot_us // 1000 + 1

    @property
    def record_ms(self) -> int:
        """Milliseconds for which the record of a success stays: the ledger remembers it for longer."""
        return ECHO_MS

    def seen(self) -> SeenOp:
        """Return the operation that looks whether the ledger remembers the id."""
        return SeenOp(self.bucket, self.digest, self.terms, self.id)

    async def find_again(self, code: Code | None) -> LedgerPlace:
        """Return the place in the ledger's present form, after STALE or a full bucket; see `FindsIds.place_of`."""
        assert self.ledger is not None
        return await self.ledger.place_of(self.id.decode(), code)


class FirstOp(IdOp):
    """Remember an id. OK if this call is the first; ALREADY, STALE or FULL if it is not remembered for this call."""

    verb = Verb.FIRST
    __slots__ = ("answer", "resent")

    answer: Any
    """The store's reply, or the error in its place; later the verdict. Set and read by the call alone."""
    resent: bool
    """Set, and True, if it was sent once without a reply: that copy may have remembered the id."""

    @property
    def may_be_there(self) -> bool:
        """True if the id may be remembered for a call that has got no answer."""
        return was_accepted(self) and (not isinstance(self.answer, RefusedAlone) or hasattr(self, "resent"))


class SeenOp(IdOp):
    """Look whether an id is remembered: ALREADY or ABSENT; STALE.

    Without a nonce `entry` is the digest; with one, OK says that this call has remembered the id.
    """

    verb = Verb.SEEN
    __slots__ = ()


class ForgetIdOp(IdOp):
    """Remove an id: OK, ABSENT or STALE. `entry`: the digest; with a nonce only that call's entry.

    `reason`: see `ForgetOp`.
    """

    verb = Verb.FORGET_ID
    __slots__ = ("reason", "until_ms")

    def __init__(
        self, wire: bytes, entry: bytes, terms: LedgerTerms, id: bytes = b"", reason: str = ""
    ) -> None:
        super().__init__(wire, entry, terms, id)
        self.reason = reason
        # A call's id is removed from its own place, even if the ledger has changed since.
        self.until_ms = FOREVER_MS if self.takes_back else terms.until_ms

    @property
    def takes_back(self) -> bool:
        """True if it removes one call's entry, and no user has asked for that."""
        return len(self.entry) > self.terms.width


class LedgerOp(Op):
    """Create a ledger, or read its form: the reply is a `StoredForm`. `former`: the form to replace; empty: none.

    With an empty `form` it is only read: the reply may be ABSENT. With `ttl_ms=0` its life is not prolonged.
    After `until_ms` by the server's time nothing is stored: the reply is STALE.
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


def without_ledger(op: ClaimOp | SettleOp) -> ClaimOp | SettleOp:
    """Return an operation with the same effect on the record, without the ledger."""
    if isinstance(op, ClaimOp):
        alone = op.copy()
        alone.unless = None
        return alone
    return SettleOp(
        op.wire, op.owner, op.fence, succeeded=op.succeeded, keep_ms=op.keep_ms, payload=op.payload
    )


class WeighOp(Op):
    """Count the content of a bucket: the reply is a `Weight`, or ABSENT."""

    verb = Verb.WEIGH
    __slots__ = ("terms",)

    def __init__(self, wire: bytes, terms: LedgerTerms) -> None:
        self.wire = wire
        self.witness = None
        self.terms = terms

    @property
    def weight(self) -> int:
        """The same as a read's: the store looks at each entry, and a call for statistics weighs 1,000 buckets."""
        return READ_WEIGHT
