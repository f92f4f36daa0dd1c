"""Keys: what users pass, what the store sees, and two helpers that make good ones."""

from __future__ import annotations

import math
import re
import time
from enum import Enum
from hashlib import blake2b
from typing import Any

import orjson

from .checks import is_number
from .codec import has_nan
from .errors import ConfigError, InvalidKeyError

MAX_KEY_BYTES = 1024
READABLE_BYTES = 40
"""A key up to this size is stored as it is: UUIDs and most business keys can be read in redis-cli, and cost
no hash. A longer one is stored as a 16-byte digest."""
_SHORTEST_WINDOW = 0.001
_NAMESPACE = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")


class Kind(Enum):
    """What a key is for; keys of different kinds never meet. Two marks: readable, digested.

    A namespace holds none of these characters, so no two (namespace, kind, key) share a store key.
    """

    CLAIM = (b"=", b"#")
    TOKEN = (b"?", b"!")
    LOCK = (b"&", b"%")
    MACHINE = (b"@", b"$")


_WIRE = re.compile(rb"([A-Za-z0-9_.:/-]+):([=#?!&%@$])(.*)", re.DOTALL)
_READABLE_MARKS = {kind.value[0] for kind in Kind}


class Keyspace:
    """Turns the keys of one namespace and kind into store keys: `shop:=order:7`, or a digest where long."""

    __slots__ = ("_digested", "_plain", "_readable")

    def __init__(self, namespace: str, kind: Kind, *, readable: int = READABLE_BYTES) -> None:
        prefix = namespace.encode() + b":"
        self._plain = prefix + kind.value[0]
        self._digested = prefix + kind.value[1]
        self._readable = readable

    def wire(self, key: str) -> bytes:
        """Return the store key of `key`.

        Raises:
            InvalidKeyError: not text, empty, over 1024 bytes of UTF-8, or with lone surrogates.
        """
        if not isinstance(key, str):
            raise _not_text("key", key)
        try:
            data = key.encode()
        except UnicodeEncodeError as error:
            raise InvalidKeyError(f"a key must be text that UTF-8 can hold: {error.reason}") from None
        return self.wire_of(data)

    def wire_of(self, data: bytes) -> bytes:
        """Return the store key of a key's UTF-8. Raises as `wire`; that it is UTF-8 is the caller's to see to."""
        size = len(data)
        if size > self._readable:
            if size > MAX_KEY_BYTES:
                raise InvalidKeyError(
                    f"a key takes at most {MAX_KEY_BYTES} bytes of UTF-8, this one has {size}"
                )
            return self._digested + blake2b(data, digest_size=16).digest()
        if not size:
            raise InvalidKeyError("the key is empty: it would make every request a duplicate of the first")
        return self._plain + data

    def wire_digest(self, data: bytes) -> bytes:
        """Return the store key of a secret: always a digest, so that the store never holds the secret."""
        return self._digested + blake2b(data, digest_size=16).digest()


def names_of(wire: bytes) -> tuple[str, str]:
    """Return the namespace and the key that a store key stands for; of a long key or a token its digest."""
    found = _WIRE.fullmatch(wire)
    if found is None:
        return "", wire.decode(errors="replace")
    namespace, mark, key = found.groups()
    return namespace.decode(), key.decode(errors="replace") if mark in _READABLE_MARKS else "#" + key.hex()


def _not_text(what: str, value: object) -> InvalidKeyError:
    hint = "; decode it, or use its hex()" if isinstance(value, bytes | bytearray | memoryview) else ""
    return InvalidKeyError(f"a {what} is text, not {type(value).__name__}{hint}")


def check_namespace(namespace: str) -> str:
    """Return the namespace, or raise ConfigError naming the rule."""
    if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
        raise ConfigError(f"a namespace is 1 to 64 of A-Z a-z 0-9 _ . : / -, not {namespace!r}")
    return namespace


def fingerprint(value: Any) -> bytes:
    """Return a 16-byte digest of a request, to tell a retry from another request under the same key.

    bytes are taken as they are, text as its UTF-8, anything else as JSON with sorted keys; so a
    dict gives the same digest whatever its order, in every process, and `b"x"`, `"x"` and the
    JSON `"x"` of a one-item value are never confused with each other.

    Raises:
        ConfigError: the value has a type that JSON cannot express, a NaN among them.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return blake2b(value, digest_size=16, person=b"bytes").digest()
    if isinstance(value, str):
        return blake2b(_utf8(value), digest_size=16, person=b"text").digest()
    return blake2b(_canonical(value), digest_size=16, person=b"json").digest()


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"fingerprint() needs text that UTF-8 can hold: {error.reason}") from None


def _canonical(value: Any) -> bytes:
    """JSON with sorted keys. orjson turns NaN into null, which would equate two requests: refuse it."""
    try:
        encoded = orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_UTC_Z)
    except TypeError as error:
        raise ConfigError(
            f"fingerprint() takes bytes, text or a JSON-able value: {error}; pass the raw body or convert it"
        ) from None
    if b"null" in encoded and has_nan(value):
        raise ConfigError("fingerprint() refuses NaN and infinity: they are not JSON and equal nothing")
    return encoded


def business_key(*parts: str | int, window: float | None = None, at: float | None = None) -> str:
    """Join the parts of a business identity into one key, the same within one slot of time.

    `business_key("user:7", "sku:9", window=300)` gives one key for all clicks that fall into the
    same 300-second slot. Slots start at multiples of `window` seconds since 1970 UTC, for everyone:
    two clicks a second apart on the two sides of a slot's edge get two keys. Where that matters,
    take a `window` well above the time in which retries come, or a key that the client sends.

    Args:
        parts: text or whole numbers; at least one, none empty. "a", "b" and "a|b" give different keys.
        window: seconds, above 0; None for a key that holds for ever.
        at: seconds since 1970, to place the slot by an event's own time; now by default.

    Raises:
        InvalidKeyError: no part, an empty part, a part of another type, a window or time that is no positive number.
    """
    if not parts:
        raise InvalidKeyError("business_key() needs at least one part")
    key = "|".join(_part(part) for part in parts)
    if window is None:
        return key
    moment = time.time() if at is None else at
    if not (is_number(window) and window >= _SHORTEST_WINDOW and is_number(moment)):
        raise InvalidKeyError(
            f"window and at are seconds, window at least {_SHORTEST_WINDOW}; got window={window!r}, at={at!r}"
        )
    # No part is empty, so "||" can only stand here.
    return f"{key}||{math.floor(moment / window)}x{float(window)!r}"


def _part(part: str | int) -> str:
    if type(part) is str and part and "|" not in part and "\\" not in part:
        return part
    if isinstance(part, bool) or not isinstance(part, str | int) or part == "":
        raise InvalidKeyError(f"a part of a business key is text or a whole number, not empty; got {part!r}")
    return str(part).replace("\\", "\\\\").replace("|", "\\|")
