"""The operations on ledgers, and where an id's entry lies: its bucket, and its digest in there.

`lua/_ledger.lua` describes the layout. A ledger was founded with its capacity, its window and a secret; from these
follow its buckets, and every process finds the same ones.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final, Protocol
from uuid import UUID

import orjson

from ..checks import shown
from ..errors import InvalidKeyError, UnavailableError
from .keyspace import Kind
from .operations import ClaimOp, Code, Op, SettleOp, Terms, Verb

SLOTS: Final = 100
"""Parts of a window: an id is kept for the window and up to one part more."""
NONCE_BYTES: Final = 5
_EXPIRY_SLOTS: Final = 125
"""Slots after which a bucket expires, from when it was written anew; see `_ledger.lua`."""
_PLANNED: Final = 112
_PLANNED_WIDE: Final = 128
"""Entries in a bucket of a full ledger: fewer cost more memory for each key, more cost time for each id."""
_NAMED: Final = (4, 200)
"""Entries of a bucket whose calls are known by their nonces, at least and at most."""
_NAMED_IN_ALL: Final = 100_000
"""Entries of a ledger whose calls are known: as many as a fast consumer brings in half a second."""
_FREE_PLACES: Final = {"set": 12, "append": 40}
"""Inserts that fill a free place of a bucket, before it is written anew."""
_MOST: Final = 2000
"""Entries in a bucket at most; 18 times as many as planned. A bucket of 2,000 wide ones has 34 kB."""
DENSE_WIDTH: Final = 9
"""Bytes of a digest in a dense ledger, where it is the id itself; see `_dense.lua`."""
MAX_DENSE: Final = (1 << 63) - 1
"""The greatest id of a dense ledger."""
_ODD: Final = 0x9E3779B97F
_CELL: Final = 64
"""Ids of a cell, in a dense ledger."""
_CHUNKS: Final = 512
"""Chunks that a dense ledger's capacity has: more would cost more memory for keys, fewer more for nonces."""
_CHUNK: Final = (1024, 8192)
"""Ids of a chunk, at least and at most."""
_SPREAD: Final = 16
"""By how much the ids of one window may be further apart than a dense ledger's capacity says."""
_IN_STEP: Final = 16
"""Neighbouring chunks whose nonces are known together; so many slots of a Cluster have a dense ledger's buckets."""
_STRAYS: Final = 10_000
"""Ids that a bucket of a dense ledger has outside its cells, at most. They take 10 bytes each."""
_GENERATIONS: Final = 63
_MOST_CAPACITIES: Final = 8
"""Former capacities that are taken from clients that were not told of the present one."""
_SECRET_BYTES: Final = 32
_FILLING: Final = 0.8
"""Share of the capacity from which a ledger counts as filling."""
FOREVER_MS: Final = 1 << 52
"""Later than any server's time, and exact in Lua."""
ECHO_MS: Final = 60_000
"""Milliseconds for which the record of a success stays that a ledger remembers: a completion may come twice."""
MAX_ID: Final = 64 * 1024
"""Bytes of an id, at most."""
_DIGITS: Final = [
    byte.encode() for byte in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
]
_PAIRS: Final = [high + low for high in _DIGITS for low in _DIGITS]


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
            self.young, self.named, self.most = form.chunk // _CELL, 1, _STRAYS
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


class FirstOp(Op):
    """Remember an id. OK where this call is the first; ALREADY, STALE or FULL where it is not remembered for it."""

    verb = Verb.FIRST
    __slots__ = ("entry", "id", "terms")

    def __init__(self, wire: bytes, entry: bytes, terms: LedgerTerms, id: bytes = b"") -> None:
        self.wire = wire
        self.witness = None
        self.entry = entry
        """The digest and the nonce."""
        self.terms = terms
        self.id = id
        """The id itself, for a policy: stores do not look at it."""

    @property
    def place(self) -> bytes:
        """The bucket's key and the digest, which name the id."""
        return self.wire + self.entry[: self.terms.width]


class SeenOp(Op):
    """Look whether an id is remembered: ALREADY or ABSENT; STALE.

    `entry`: the digest; with a nonce behind it, OK says that this call has remembered the id.
    """

    verb = Verb.SEEN
    __slots__ = ("entry", "id", "terms")

    def __init__(self, wire: bytes, entry: bytes, terms: LedgerTerms, id: bytes = b"") -> None:
        self.wire = wire
        self.witness = None
        self.entry = entry
        self.terms = terms
        self.id = id

    @property
    def place(self) -> bytes:
        """The bucket's key and the digest, which name the id."""
        return self.wire + self.entry[: self.terms.width]


class ForgetIdOp(Op):
    """Remove an id: OK, ABSENT or STALE. `entry`: the digest; with a nonce only what that call has remembered."""

    verb = Verb.FORGET_ID
    __slots__ = ("entry", "id", "terms", "until_ms")

    def __init__(self, wire: bytes, entry: bytes, terms: LedgerTerms, id: bytes = b"") -> None:
        self.wire = wire
        self.witness = None
        self.entry = entry
        self.terms = terms
        self.id = id
        # What a call has remembered is taken back where it lies, whatever became of the ledger since.
        self.until_ms = terms.until_ms if len(entry) == terms.width else FOREVER_MS

    @property
    def place(self) -> bytes:
        """The bucket's key and the digest, which name the id."""
        return self.wire + self.entry[: self.terms.width]


class LedgerOp(Op):
    """Found a ledger, or read its form: the reply is a `StoredForm`. `former`: the form to replace; empty: none.

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

    @property
    def place(self) -> IdPlace:
        """Where the id's entry lies."""
        return self.bucket, self.digest, self.ledger_terms

    @property
    def id(self) -> bytes:
        """The id itself, for a policy: stores do not look at it. Empty where it is not known."""
        return self.key.encode() if hasattr(self, "key") else b""

    def seen(self) -> SeenOp:
        """Return the operation that looks whether the ledger remembers the id."""
        return SeenOp(self.bucket, self.digest, self.ledger_terms, self.id)

    async def find_again(self, code: Code | None, *, moves: bool) -> bool:
        """Rely on what the ledger is now: the store has said STALE, or it has no room. True where the id has moved.

        Args:
            code: the store's answer, if it was asked.
            moves: go where the ledger's present form puts the id. So does a claim that is not made yet, and one that
                a policy has given: where the policy had founded the ledger itself, and the store has another form, it
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

    def look(self, terms: Terms) -> RememberedClaimOp:
        """Return as `ClaimOp.look`."""
        op = RememberedClaimOp(self.wire, terms, self.owner, self.fingerprint, self.place)
        op.named = self.named
        op.key = self.key
        return op


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

    @property
    def digest(self) -> bytes:
        """The id's digest."""
        return self.entry[:-NONCE_BYTES]


def without_ledger(op: RememberedClaimOp | RememberedSettleOp) -> ClaimOp | SettleOp:
    """Return an operation that does to the record alone what this one does to it."""
    if isinstance(op, RememberedClaimOp):
        return ClaimOp(op.wire, op.terms, op.owner, op.fingerprint)
    return SettleOp(op.wire, op.owner, op.fence, succeeded=True, keep_ms=op.keep_ms, payload=op.payload)


class WeighOp(Op):
    """Count what a bucket holds: the reply is a `Weight`, or ABSENT."""

    verb = Verb.WEIGH
    __slots__ = ("terms",)

    def __init__(self, wire: bytes, terms: LedgerTerms) -> None:
        self.wire = wire
        self.witness = None
        self.terms = terms


class LedgerForm:
    """What a ledger was founded with. Its text lies in the store; the secret in it must not be shown.

    Attributes:
        capacity: ids that it is planned for in one window.
        width: bytes of a digest.
        window_ms: for how long an id is remembered.
        buckets: how many buckets it has.
        chunk: neighbouring ids that share a bucket, in a dense ledger; else 0.
        capacities: those that it had before it was resized.
        generation: tells the buckets of this form from those of the form before; 0 where it was never resized.
        former: the form that it had before, while ids remembered by that may live; else None.
        switch_ms: the server's time from which ids are remembered by this form and no longer by the former one.
    """

    __slots__ = (
        "buckets",
        "capacities",
        "capacity",
        "chunk",
        "former",
        "generation",
        "secret",
        "switch_ms",
        "width",
        "window_ms",
    )

    def __init__(self, *, capacity: int, width: int, window_ms: int, secret: bytes) -> None:
        self.capacities: tuple[int, ...] = ()
        self.generation = 0
        self.former: LedgerForm | None = None
        self.switch_ms = 0
        self.capacity = capacity
        self.width = width
        self.window_ms = window_ms
        self.secret = secret
        self.chunk = 0
        if width == DENSE_WIDTH:
            least, most = _CHUNK
            self.chunk = min(most, max(least, 1 << (-(-capacity // _CHUNKS) - 1).bit_length()))
            self.buckets = _IN_STEP * -(-_SPREAD * capacity // (_IN_STEP * self.chunk))
        else:
            self.buckets = -(-capacity // (_PLANNED_WIDE if width == 16 else _PLANNED))

    @property
    def dense(self) -> bool:
        """True where the ids are integers, of which it keeps a bit each."""
        return self.width == DENSE_WIDTH

    @property
    def filling_from(self) -> float:
        """Entries in a bucket from which the ledger counts as filling; see `LedgerTerms.seen_fill`."""
        return _FILLING * (_STRAYS if self.dense else self.capacity / self.buckets)

    def fill_of(self, entries: float) -> float:
        """Return how full the ledger is, by the entries in a bucket."""
        return entries / _STRAYS if self.dense else entries * self.buckets / self.capacity

    def __repr__(self) -> str:
        return f"<LedgerForm capacity={self.capacity} width={self.width} window_ms={self.window_ms}>"

    @classmethod
    def drawn(cls, *, capacity: int, width: int, window_ms: int) -> LedgerForm:
        """Return a form with a new secret."""
        return cls(
            capacity=capacity, width=width, window_ms=window_ms, secret=secrets.token_bytes(_SECRET_BYTES)
        )

    def resized(self, capacity: int, switch_ms: int) -> LedgerForm:
        """Return the form of another capacity that takes this one's place at that time."""
        form = LedgerForm.drawn(capacity=capacity, width=self.width, window_ms=self.window_ms)
        form.capacities = (*self.capacities, self.capacity)[-_MOST_CAPACITIES:]
        form.generation = self.generation % _GENERATIONS + 1
        form.former, form.switch_ms = self, switch_ms
        return form

    def settled(self) -> LedgerForm:
        """Return the same form without its former one, which is over."""
        form = LedgerForm(
            capacity=self.capacity, width=self.width, window_ms=self.window_ms, secret=self.secret
        )
        form.capacities, form.generation = self.capacities, self.generation
        return form

    def text(self) -> bytes:
        """Return the text that the store keeps. A version that knows no resizing refuses that of a resized ledger."""
        own = {
            "capacity": self.capacity,
            "width": self.width,
            "window_ms": self.window_ms,
            "slots": SLOTS,
            "secret": self.secret.hex(),
        }
        if not self.generation:
            return orjson.dumps(own)
        present = {**own, "capacities": self.capacities, "generation": self.generation}
        if self.former is None:
            return orjson.dumps({"present": present})
        former = orjson.loads(self.former.text())
        return orjson.dumps({"present": present, "former": former, "switch_ms": self.switch_ms})

    @classmethod
    def read(cls, text: bytes) -> LedgerForm | None:
        """Read a form's text; None where it is no text of a form that this version knows."""
        try:
            return cls._read(orjson.loads(text))
        except (ValueError, TypeError, KeyError):
            return None

    @classmethod
    def _read(cls, found: Any) -> LedgerForm | None:
        form = cls._read_one(found.get("present", found)) if isinstance(found, dict) else None
        if form is None or "former" not in found:
            return form
        former, switch_ms = cls._read(found["former"]), found["switch_ms"]
        if former is None or type(switch_ms) is not int or switch_ms <= 0:
            return None
        form.former, form.switch_ms = former, switch_ms
        return form if (form.width, form.window_ms) == (former.width, former.window_ms) else None

    @classmethod
    def _read_one(cls, found: Any) -> LedgerForm | None:
        capacity, width, window_ms = (found[name] for name in ("capacity", "width", "window_ms"))
        capacities, generation = found.get("capacities", []), found.get("generation", 0)
        secret = bytes.fromhex(found["secret"])
        numbers = [capacity, width, window_ms, *capacities]
        fits = found["slots"] == SLOTS and len(secret) == _SECRET_BYTES
        fits = fits and type(generation) is int and 0 <= generation <= _GENERATIONS
        if not fits or not all(type(number) is int and number > 0 for number in numbers) or width > 16:
            return None
        form = cls(capacity=capacity, width=width, window_ms=window_ms, secret=secret)
        form.capacities, form.generation = tuple(capacities), generation
        return form


class IdPlaces(Protocol):
    """Finds where the entries of a ledger's ids lie."""

    def find(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the store key of an id's bucket, and the id's digest."""
        ...

    def entry(self, data: bytes, nonce: bytes) -> tuple[bytes, bytes]:
        """Return the store key of an id's bucket, and the id's entry for a call of this nonce."""
        ...

    def bucket(self, number: int) -> bytes:
        """Return the store key of a bucket."""
        ...


def places_of(stem: bytes, form: LedgerForm) -> IdPlaces:
    """Return what finds the ids of a ledger. `stem`: the ledger's store key."""
    return DenseAddresses(stem, form) if form.dense else Addresses(stem, form)


class Addresses:
    """Finds where the entries of a ledger's ids lie: a keyed hash spreads them over the buckets."""

    __slots__ = ("_buckets", "_end", "_hash", "_short", "_stem")

    def __init__(self, stem: bytes, form: LedgerForm) -> None:
        self._end = (_DIGITS[form.generation] if form.generation else b"") + b"}"
        self._stem = stem + b"{"
        self._buckets = form.buckets
        self._short = form.buckets <= 1 << 24
        # The secret as salt and person, which make a hash of its own at no cost for each id.
        self._hash = blake2b(digest_size=8 + form.width, salt=form.secret[:16], person=form.secret[16:])

    def find(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the store key of an id's bucket, and the id's digest."""
        hashed = self._hash.copy()
        hashed.update(data)
        digest = hashed.digest()
        return self.bucket(int.from_bytes(digest[:8], "big") % self._buckets), digest[8:]

    def bucket(self, number: int) -> bytes:
        """Return the store key of a bucket. Its number is in braces: on a Cluster that alone chooses the slot."""
        name = _PAIRS[number >> 12 & 4095] + _PAIRS[number & 4095]
        if not self._short:
            name = _PAIRS[number >> 24] + name
        return self._stem + name + self._end

    def entry(self, data: bytes, nonce: bytes) -> tuple[bytes, bytes]:
        """Return the store key of an id's bucket, and the id's entry for a call of this nonce."""
        wire, digest = self.find(data)
        return wire, digest + nonce


class DenseAddresses:
    """Finds where the ids of a dense ledger lie: neighbours share a chunk, and buckets take the chunks in turn."""

    __slots__ = ("_buckets", "_chunk", "_end", "_stem")

    def __init__(self, stem: bytes, form: LedgerForm) -> None:
        self._end = (_DIGITS[form.generation] if form.generation else b"") + b"}"
        self._stem = stem + b"{"
        self._buckets = form.buckets
        self._chunk = form.chunk

    def find(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the store key of an id's bucket, and the id's digest. `data`: the id's decimal text."""
        number, place = divmod(int(data), self._chunk)
        return self.bucket(number % self._buckets), (number << 16 | place).to_bytes(DENSE_WIDTH, "big")

    def entry(self, data: bytes, nonce: bytes) -> tuple[bytes, bytes]:
        """Return the store key of an id's bucket, and the id's entry for a call of this nonce.

        Chunks take turns in the nonces' string, so the ids of one call must have different nonces there.
        """
        wire, digest = self.find(data)
        own = (int.from_bytes(nonce, "big") + int.from_bytes(digest[:-2], "big") * _ODD) % (
            1 << 8 * NONCE_BYTES
        )
        return wire, digest + own.to_bytes(NONCE_BYTES, "big")

    def bucket(self, number: int) -> bytes:
        """Return the store key of a bucket. In braces stands what it shares with the nonces of its ids."""
        name = _PAIRS[number >> 12 & 4095] + _PAIRS[number & 4095]
        return self._stem + _DIGITS[number % _IN_STEP] + self._end + name


def record_wire(bucket: bytes, wire: bytes, namespace: str) -> bytes:
    """Return the key of the record of a claim whose success a ledger remembers: in the slot of its id's bucket.

    `wire`: the key of the same claim without a ledger, in this namespace.
    """
    return bucket + wire[len(namespace.encode()) + 1 :]


def ledger_wire(namespace: str, name: str) -> bytes:
    """Return the store key of a ledger: its form lies there, and its buckets' keys begin with it."""
    return namespace.encode() + b":" + Kind.LEDGER.value[0] + name.encode()


def ledger_of(bucket: bytes) -> bytes:
    """Return the store key of the ledger that a bucket belongs to."""
    return bucket[: bucket.rindex(b"{")]


def id_bytes(id: Any) -> bytes:
    """Return an id as bytes. Text stands for its UTF-8, an integer and a UUID for their text.

    Raises:
        InvalidKeyError: it is empty, over 64 KiB, of another type, or text that UTF-8 cannot encode.
    """
    if type(id) is str:
        try:
            data = id.encode()
        except UnicodeEncodeError as error:
            raise InvalidKeyError(f"an id must be text that UTF-8 can encode: {error.reason}") from None
    elif type(id) is bytes:
        data = id
    elif isinstance(id, int) and not isinstance(id, bool):
        data = b"%d" % id
    elif isinstance(id, str | UUID):
        data = str(id).encode()
    elif isinstance(id, bytearray | memoryview):
        data = bytes(id)
    else:
        raise InvalidKeyError(f"an id must be text, bytes, an integer or a UUID, got {type(id).__name__}")
    if 0 < len(data) <= MAX_ID:
        return data
    if not data:
        raise InvalidKeyError("the id is empty: it would make every message a duplicate of the first")
    raise InvalidKeyError(f"an id must have at most {MAX_ID} bytes, got {len(data)}")


def number_bytes(id: Any) -> bytes:
    """Return an id of a dense ledger as bytes: its decimal text.

    Raises:
        InvalidKeyError: it is not an integer of 0 to 2^63 - 1.
    """
    if not isinstance(id, int) or isinstance(id, bool):
        raise InvalidKeyError(
            f"an id of a dense ledger must be an integer, got {type(id).__name__}; for text and bytes make the "
            "ledger without dense=True"
        )
    if 0 <= id <= MAX_DENSE:
        return b"%d" % id
    raise InvalidKeyError(f"an id of a dense ledger must be 0 to 2^63 - 1, got {shown(id)}")


def listed_bytes(ids: Iterable[Any], *, dense: bool = False) -> list[bytes]:
    """Return a list's ids as bytes, as `id_bytes` does each, or `number_bytes` for a dense ledger.

    Raises:
        InvalidKeyError: an id cannot be used, or the list is one text.
    """
    if isinstance(ids, str | bytes):
        raise InvalidKeyError("give a list of ids, not one text: its characters would be the ids")
    return list(map(number_bytes if dense else id_bytes, ids))
