"""The places of a ledger's ids: each id has a bucket, and a digest in it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from math import ceil
from typing import Any, Final
from uuid import UUID

from ..checks import shown
from ..errors import InvalidKeyError
from ..kernel.keyspace import Kind
from .forms import DENSE_WIDTH, IN_STEP, LedgerForm

NONCE_BYTES: Final = 5
"""Bytes of a nonce: `CALL_BYTES` identify a call, and the last byte has the ticks that it waits for another call that
may be undone. The store keeps the time in its place; see `lua/_ledger.lua`."""
CALL_BYTES: Final = 4
TICK_MS: Final = 500
MAX_PATIENCE: Final = 100
"""The most ticks, of the 256 that the store distinguishes."""
MAX_DENSE: Final = (1 << 63) - 1
"""The greatest id of a dense ledger."""
_ODD: Final = 0x9E3779B9
_DECIMAL: Final = re.compile("0|[1-9][0-9]{0,18}")
MAX_ID: Final = 64 * 1024
"""The most bytes of an id."""
_DIGITS: Final = [
    byte.encode() for byte in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
]
_NAME: Final = 4
"""Bytes of a dense ledger's bucket's key behind the part that buckets share with their nonces."""
_PAIRS: Final = [high + low for high in _DIGITS for low in _DIGITS]


class Addresses:
    """Finds the places of a ledger's ids: a keyed hash spreads them over the buckets."""

    __slots__ = ("_buckets", "_end", "_hash", "_short", "_stem")

    def __init__(self, stem: bytes, form: LedgerForm) -> None:
        self._end = (_DIGITS[form.generation] if form.generation else b"") + b"}"
        self._stem = stem + b"{"
        self._buckets = form.buckets
        self._short = form.buckets <= 1 << 24
        # The secret is salt and person of the hash, which makes the hash secret at no cost for each id.
        self._hash = blake2b(digest_size=8 + form.width, salt=form.secret[:16], person=form.secret[16:])

    def find(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the store key of an id's bucket, and the id's digest."""
        hashed = self._hash.copy()
        hashed.update(data)
        digest = hashed.digest()
        return self.bucket(int.from_bytes(digest[:8], "big") % self._buckets), digest[8:]

    def bucket(self, number: int) -> bytes:
        """Return the store key of a bucket. Its number is in braces: on a Cluster only that chooses the slot."""
        name = _PAIRS[number >> 12 & 4095] + _PAIRS[number & 4095]
        if not self._short:
            name = _PAIRS[number >> 24] + name
        return self._stem + name + self._end

    def entry(self, data: bytes, nonce: bytes) -> tuple[bytes, bytes]:
        """Return the store key of an id's bucket, and the id's entry for a call of this nonce."""
        wire, digest = self.find(data)
        return wire, digest + nonce


class DenseAddresses(Addresses):
    """Finds the places of a dense ledger's ids: neighbours share a chunk, and buckets take the chunks in turn."""

    __slots__ = ("_chunk",)

    def __init__(self, stem: bytes, form: LedgerForm) -> None:
        super().__init__(stem, form)
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
        call = int.from_bytes(nonce[:CALL_BYTES], "big")
        own = (call + int.from_bytes(digest[:-2], "big") * _ODD) % (1 << 8 * CALL_BYTES)
        return wire, digest + own.to_bytes(CALL_BYTES, "big") + nonce[CALL_BYTES:]

    def bucket(self, number: int) -> bytes:
        """Return the store key of a bucket. The part in braces is shared with the nonces of its ids."""
        name = _PAIRS[number >> 12 & 4095] + _PAIRS[number & 4095]
        return self._stem + _DIGITS[number % IN_STEP] + self._end + name


def nonces_beside(bucket: bytes) -> bytes:
    """Return the store key of the nonces of a dense ledger's bucket; see `DenseAddresses.bucket`."""
    return bucket[:-_NAME]


def places_of(stem: bytes, form: LedgerForm) -> Addresses:
    """Return the object that finds the ids of a ledger. `stem`: the ledger's store key."""
    return DenseAddresses(stem, form) if form.dense else Addresses(stem, form)


def nonce_of(name: bytes, patience: int = 0) -> bytes:
    """Return the nonce of a call, from its owner field. `patience`: ticks that it waits, see `NONCE_BYTES`."""
    call = blake2b(name, digest_size=NONCE_BYTES).digest() if name[0] else name[1:]
    return call[:CALL_BYTES] + bytes((patience,))


def patience_of(timeout: float) -> int:
    """Return the ticks for which a call without a reply may be undone: two timeouts, which are in seconds."""
    return min(ceil(2000 * timeout / TICK_MS), MAX_PATIENCE)


def without_patience(nonce: bytes) -> bytes:
    """Return the nonce of the same call, which waits for no other call."""
    return nonce[:CALL_BYTES] + b"\0"


def same_call(nonce: bytes, other: bytes) -> bool:
    """True for the nonces of one call."""
    return nonce[:CALL_BYTES] == other[:CALL_BYTES]


def record_wire(bucket: bytes, wire: bytes, namespace: str) -> bytes:
    """Return the key of the record of a claim whose success a ledger remembers: in the slot of its id's bucket.

    `wire`: the key of the same claim without a ledger, in this namespace.
    """
    return bucket + wire[len(namespace.encode()) + 1 :]


def ledger_wire(namespace: str, name: str) -> bytes:
    """Return the store key of a ledger: its form is there, and its buckets' keys begin with it."""
    return namespace.encode() + b":" + Kind.LEDGER.value[0] + name.encode()


def ledger_of(bucket: bytes) -> bytes:
    """Return the store key of the ledger that a bucket belongs to."""
    return bucket[: bucket.rindex(b"{")]


def id_bytes(id: Any) -> bytes:
    """Return an id as bytes. Text stands for its UTF-8, an integer and a UUID for their text.

    Raises:
        InvalidKeyError: the id is empty, over 64 KiB, a number of too many digits, of another type, or text that
            UTF-8 cannot encode.
    """
    if isinstance(id, str):
        try:
            data = id.encode()
        except UnicodeEncodeError as error:
            raise InvalidKeyError(f"an id must be text that UTF-8 can encode: {error.reason}") from None
    elif type(id) is bytes:
        data = id
    elif isinstance(id, int) and not isinstance(id, bool):
        try:
            data = b"%d" % id
        except ValueError:  # Python's own limit of digits
            raise InvalidKeyError(f"an id must have fewer digits, got {shown(id)}: take its digest") from None
    elif isinstance(id, UUID):
        data = str(id).encode()
    elif isinstance(id, bytes | bytearray | memoryview):
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
        InvalidKeyError: the id is not an integer of 0 to 2^63 - 1.
    """
    if not isinstance(id, int) or isinstance(id, bool):
        raise InvalidKeyError(
            f"an id of a dense ledger must be an integer, got {type(id).__name__}; for text and bytes make the "
            "ledger without dense=True"
        )
    if 0 <= id <= MAX_DENSE:
        return b"%d" % id
    raise InvalidKeyError(f"an id of a dense ledger must be 0 to 2^63 - 1, got {shown(id)}")


def number_in(id: Any) -> Any:
    """Return the integer that a decimal text stands for. Anything else stays unchanged, and the ledger refuses it."""
    text = id.decode("ascii", "replace") if isinstance(id, bytes) else id
    return int(text) if isinstance(text, str) and _DECIMAL.fullmatch(text) else text


def listed_bytes(ids: Iterable[Any], *, dense: bool = False) -> list[bytes]:
    """Return the bytes of a list's ids: from `id_bytes` for each, or `number_bytes` for a dense ledger.

    Raises:
        InvalidKeyError: an id cannot be used; `ids` is one text, or no list.
    """
    if isinstance(ids, str | bytes | bytearray | memoryview):
        raise InvalidKeyError("give a list of ids, not one text: its characters would be the ids")
    if not isinstance(ids, Iterable):
        raise InvalidKeyError(f"give a list of ids, got {shown(ids)}")
    return list(map(number_bytes if dense else id_bytes, ids))
