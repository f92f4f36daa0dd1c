"""Two helpers that make good keys and fingerprints. What the store sees of a key is in `keyspace.py`."""

from __future__ import annotations

import math
import re
import time
from hashlib import blake2b
from typing import Any

import orjson

from .checks import is_number
from .codec import has_nan
from .errors import ConfigError, InvalidKeyError

_SHORTEST_WINDOW = 0.001
_NAMESPACE = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")


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


def digest(value: Any) -> bytes:
    """Return a fingerprint as it is, anything else digested."""
    return value if isinstance(value, bytes) and len(value) == 16 else fingerprint(value)


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
