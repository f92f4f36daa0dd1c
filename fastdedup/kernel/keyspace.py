"""A key's form in the store: its namespace, its kind, and the key or a digest of the key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from ..checks import NAME, NAME_CHARACTER
from ..errors import InvalidKeyError

MAX_KEY_BYTES: Final = 1024
READABLE_BYTES: Final = 40
"""A key up to this size is stored unchanged: UUIDs and most business keys can be read in redis-cli, and cost
no hash. A longer key is stored as a 16-byte digest."""


class Kind(Enum):
    """The purpose of a key; keys of different kinds never meet. It has a mark of a readable key, and one of a digest.

    A namespace cannot contain these characters, so two different (namespace, kind, key) never share a store key.
    """

    CLAIM = (b"=", b"#")
    TOKEN = (b"?", b"!")
    LOCK = (b"&", b"%")
    MACHINE = (b"@", b"$")
    LEDGER = (b"~", b"^")


_NAME: Final = NAME_CHARACTER.encode() + b"+"
_WIRE: Final = re.compile(rb"(%b):([=#?!&%%@$~^])(.*)" % _NAME, re.DOTALL)
_BESIDE: Final = re.compile(rb"%b\{[A-Za-z0-9_-]+\}([=#])(.*)" % _NAME, re.DOTALL)
"""A ledger's name, a bucket's number, and the mark and key of a claim whose success the ledger remembers."""
_RECORD_BESIDE: Final = re.compile(rb"%b:~%b\{[A-Za-z0-9_-]{4,7}\}[=#]" % (_NAME, NAME.encode()), re.DOTALL)
"""The beginning of such a claim's store key, mark included."""
_DIGEST_BYTES: Final = 16
_READABLE_MARKS: Final = {kind.value[0] for kind in Kind}


class Keyspace:
    """Turns the keys of one namespace and kind into store keys: `shop:=order:7`, or a digest of a long key."""

    __slots__ = ("_digested", "_plain", "_readable")

    def __init__(self, namespace: str, kind: Kind, *, readable: int = READABLE_BYTES) -> None:
        prefix = namespace.encode() + b":"
        self._plain = prefix + kind.value[0]
        self._digested = prefix + kind.value[1]
        self._readable = readable

    def wire(self, key: Any) -> bytes:
        """Return the store key of `key`.

        Raises:
            InvalidKeyError: the key is not text, is empty, has over 1024 bytes of UTF-8 or a lone surrogate.
        """
        if not isinstance(key, str):
            raise _not_text(key)
        try:
            data = key.encode()
        except UnicodeEncodeError as error:
            raise InvalidKeyError(f"a key must be text that UTF-8 can encode: {error.reason}") from None
        if 0 < len(data) <= self._readable:
            return self._plain + data  # like `wire_of`; saves a call for nearly every key
        return self.wire_of(data)

    def wire_of(self, data: bytes) -> bytes:
        """Return the store key of a key's UTF-8, which the caller has checked. Raises the errors of `wire`."""
        size = len(data)
        if size > self._readable:
            if size > MAX_KEY_BYTES:
                raise InvalidKeyError(f"a key must have at most {MAX_KEY_BYTES} bytes of UTF-8, got {size}")
            return self.wire_digest(data)
        if not size:
            raise InvalidKeyError("the key is empty: it would make every request a duplicate of the first")
        return self._plain + data

    def has(self, wire: bytes) -> bool:
        """True for a store key of this namespace and kind."""
        return wire.startswith((self._plain, self._digested))

    def wire_of_digest(self, digest: str) -> bytes:
        """Return the store key for a digest in the form of `names_of`: "#" and 32 hexadecimal digits.

        Raises:
            InvalidKeyError: it is not such a digest.
        """
        found = re.fullmatch("#?([0-9a-fA-F]{32})", digest)
        if found is None:
            raise InvalidKeyError(
                "a digest must be # and 32 hexadecimal digits, the form in a list of records"
            )
        return self._digested + bytes.fromhex(found[1])

    def wire_digest(self, data: bytes) -> bytes:
        """Return the store key of a secret: always a digest, so that the store never holds the secret."""
        return self._digested + blake2b(data, digest_size=_DIGEST_BYTES).digest()


def check_wire(wire: bytes, start: int) -> None:
    """Check a store key that another process has made; its key, or its digest, begins at `start`, after the mark.

    Raises:
        InvalidKeyError: no key of this mark can have these bytes.
    """
    size = len(wire) - start
    if wire[start - 1 : start] not in _READABLE_MARKS:
        if size != _DIGEST_BYTES:
            raise InvalidKeyError(f"a key's digest must have {_DIGEST_BYTES} bytes, got {size}")
        return
    if not 0 < size <= MAX_KEY_BYTES:
        raise InvalidKeyError(f"a key must have 1 to {MAX_KEY_BYTES} bytes of UTF-8, got {size}")
    if not wire.isascii():
        try:
            wire.decode()
        except UnicodeDecodeError:
            raise InvalidKeyError("a key must be UTF-8 text") from None


def start_beside(wire: bytes) -> int:
    """Return the place of the key in the store key of a record beside a ledger's bucket; 0 for other keys."""
    found = _RECORD_BESIDE.match(wire)
    return 0 if found is None else found.end()


def names_of(wire: bytes) -> tuple[str, str]:
    """Return the namespace and the key of a store key; for a long key or a token the digest."""
    found = _WIRE.fullmatch(wire)
    if found is None:
        return "", wire.decode(errors="replace")
    namespace, mark, key = found.groups()
    if mark == b"~" and (beside := _BESIDE.fullmatch(key)) is not None:
        mark, key = beside.groups()
    return namespace.decode(), key.decode(errors="replace") if mark in _READABLE_MARKS else "#" + key.hex()


def ledger_of(wire: bytes) -> tuple[str, str]:
    """Return the namespace and the ledger's name of a bucket's store key."""
    namespace, _, bucket = wire.partition(b":~")
    return namespace.decode(), bucket.partition(b"{")[0].decode()


class FoundKey(NamedTuple):
    """A key of one namespace, read from its store key; "#" and a digest if no more is known."""

    kind: Kind
    key: str
    digest: bool


def pattern_of(namespace: str, kinds: Sequence[Kind], prefix: str = "") -> bytes:
    """Return the glob of Redis that fits the store keys of these kinds, and others too: check each with `found_in`.

    `prefix`: the beginning of the readable keys; a digest does not show how its key begins.
    """
    start = namespace.encode() + b":"
    if prefix:
        marks = b"".join(kind.value[0] for kind in kinds)
        # The mark of a claim whose success a ledger remembers follows the ledger's name and the bucket.
        return start + b"*[" + marks + b"]" + re.sub(rb"([*?\[\]\\])", rb"\\\1", prefix.encode()) + b"*"
    marks = b"".join(kind.value[0] + kind.value[1] for kind in kinds)
    return start + b"[" + marks + (Kind.LEDGER.value[0] if Kind.CLAIM in kinds else b"") + b"]*"


def found_in(wire: bytes, namespace: str, kinds: Sequence[Kind], prefix: str = "") -> FoundKey | None:
    """Return the key of a store key; None if it is not of this namespace, kind or prefix."""
    start = namespace.encode() + b":"
    if not wire.startswith(start) or len(wire) < len(start) + 2:
        return None
    mark, data = wire[len(start) : len(start) + 1], wire[len(start) + 1 :]
    if mark == Kind.LEDGER.value[0]:
        beside = _BESIDE.fullmatch(data)
        if beside is None:
            return None
        mark, data = beside.groups()
    for kind in kinds:
        if mark == kind.value[0] and data.startswith(prefix.encode()):
            return FoundKey(kind, data.decode(errors="replace"), False)
        if mark == kind.value[1] and not prefix:
            return FoundKey(kind, "#" + data.hex(), True)
    return None


def _not_text(value: object) -> InvalidKeyError:
    if isinstance(value, bytes | bytearray | memoryview):
        advice = "; decode it, or use its hex()"
    elif value is None:  # its text would be one key for all calls that have none
        advice = ""
    else:
        advice = "; make it by business_key(…)"
    return InvalidKeyError(f"a key must be text, got {type(value).__name__}{advice}")
