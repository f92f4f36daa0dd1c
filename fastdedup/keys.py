"""Functions that make good keys and fingerprints. A key's form in the store is in `kernel/keyspace.py`."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import UTC, date, datetime
from decimal import Decimal
from hashlib import blake2b
from typing import Any
from uuid import UUID

import orjson

from .checks import NAME, NAME_CHARACTER, Seconds, is_number, seconds_of, shown, whole_text
from .codec import has_nan
from .errors import ConfigError, InvalidKeyError

_SHORTEST_WINDOW = 0.001
_NAMESPACE = re.compile(NAME)
_DIGEST_BYTES = 16


def check_namespace(namespace: str, what: str = "a namespace") -> str:
    """Return the text of a namespace, or raise ConfigError naming the rule. `what`: the name of such a text."""
    if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
        raise ConfigError(
            f"{what} must have 1 to 64 characters of A-Z a-z 0-9 _ . : / -, got {_described(namespace)}"
        )
    return str.__str__(namespace)  # see `key_part`


def _described(namespace: Any) -> str:
    """Return what is wrong with a namespace, without its text: that may be a password from a wrong variable."""
    if not isinstance(namespace, str):
        return type(namespace).__name__
    others = sorted(set(re.sub(NAME_CHARACTER, "", namespace)))
    return f"text with {others[0]!r} in it" if others else f"{len(namespace)} characters"


class Fingerprint(bytes):
    """A finished digest of 16 bytes, made by `fingerprint()`.

    Its type distinguishes it from bytes that a client sent. Such bytes are digested, so no client can choose the
    fingerprint of another request.

    Raises:
        ConfigError: the digest does not have 16 bytes.
    """

    __slots__ = ()

    def __new__(cls, digest: bytes) -> Fingerprint:
        """Return the digest as a Fingerprint, after a check of its length."""
        if not isinstance(digest, bytes) or len(digest) != _DIGEST_BYTES:
            what = f"{len(digest)} bytes" if isinstance(digest, bytes) else type(digest).__name__
            raise ConfigError(
                f"a Fingerprint must have {_DIGEST_BYTES} bytes, got {what}; make one with fingerprint(value)"
            )
        return super().__new__(cls, digest)

    def __repr__(self) -> str:
        return f"Fingerprint.fromhex({self.hex()!r})"

    __str__ = __repr__


def fingerprint(value: Any) -> Fingerprint:
    """Return a 16-byte digest of a request, to tell a retry from another request under the same key.

    Bytes are digested unchanged, text as its UTF-8, any other value as JSON with sorted keys. So a dict gives the
    same digest in any order and in every process, and `b"x"`, `"x"` and the JSON `"x"` of a value never give the same
    digest. A `Fingerprint` is returned unchanged. Attributes of a dataclass that begin with "_" are left out: they do
    not tell two requests apart.

    The sidecar digests its clients' fingerprints in the same way: `{"fingerprint": "x"}` over HTTP and `FP x` over
    RESP are `fingerprint("x")`. Send it the request, or a text that names the request; the digits of a digest are
    text like any other.

    Raises:
        ConfigError: the value has a type that JSON cannot express, or holds a NaN or an infinity.
    """
    if isinstance(value, Fingerprint):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        data = value.tobytes() if isinstance(value, memoryview) else value  # a strided view has no buffer
        return _digest(data, b"bytes")
    if isinstance(value, str):
        return _digest(_utf8(value), b"text")
    return _digest(_canonical(value), b"json")


def mark_of(value: Any) -> Fingerprint | None:
    """Return the fingerprint of a caller's `fingerprint=`; None for None, which is compared with nothing."""
    return None if value is None else fingerprint(value)


def marks_of(fingerprints: Iterable[Any] | None, keys: Sequence[str]) -> list[Fingerprint | None]:
    """Return a fingerprint for each key, from a caller's `fingerprints=`.

    Raises:
        ConfigError: the fingerprints are no list, or not as many as the keys; or see `fingerprint`.
    """
    if fingerprints is None:
        return [None] * len(keys)
    if isinstance(fingerprints, str | bytes | Set | Mapping) or not isinstance(fingerprints, Iterable):
        raise ConfigError(f"fingerprints must be a list with one for each key, got {shown(fingerprints)}")
    marks = [mark_of(each) for each in fingerprints]
    if len(marks) != len(keys):
        raise ConfigError(f"{len(marks)} fingerprints for {len(keys)} keys: give one for each")
    return marks


def _digest(data: bytes | bytearray, kind: bytes) -> Fingerprint:
    return bytes.__new__(Fingerprint, blake2b(data, digest_size=_DIGEST_BYTES, person=kind).digest())


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        reason = error.reason
    # Outside of the except clause, because Python's error holds the text itself.
    raise ConfigError(f"a fingerprint or a subject must be text that UTF-8 can encode: {reason}")


def _dumps(value: Any) -> bytes:
    option = orjson.OPT_SORT_KEYS | orjson.OPT_UTC_Z
    try:
        return orjson.dumps(value, option=option)
    except TypeError as error:
        fault = error
    try:
        return orjson.dumps(_with_large_numbers(value), option=option)
    except (TypeError, ValueError, RecursionError):
        raise fault from None


def _with_large_numbers(value: Any) -> Any:
    """Return a value with its whole numbers beyond 64 bits as JSON, which orjson does not write by itself."""
    if isinstance(value, dict):
        return {key: _with_large_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_large_numbers(item) for item in value]
    return orjson.Fragment(str(value)) if type(value) is int and abs(value) >= 1 << 63 else value


def _canonical(value: Any) -> bytes:
    """Return JSON with sorted keys. orjson turns NaN into null, which would equate two requests: refuse it."""
    try:
        encoded = _dumps(value)
    except TypeError as error:
        raise ConfigError(
            f"a fingerprint or a subject must be bytes, text or a value that JSON can hold: {error}; "
            "pass the raw body or convert it"
        ) from None
    if b"null" in encoded and has_nan(value):
        raise ConfigError(
            "a fingerprint or a subject cannot hold NaN or infinity, because JSON has neither: give null (None) or "
            "text in its place"
        )
    return encoded


KeyPart = str | int | UUID | date | Decimal
"""A part of a business key; a datetime is a date."""
_LONGEST_ZEROS = 64
"""The most zeros that a Decimal's exponent may stand for."""


def business_key(*parts: KeyPart, window: Seconds | None = None, at: float | None = None) -> str:
    """Join the parts of a business identity into one key, the same within one slot of time.

    `business_key("user:7", "sku:9", window=300)` gives one key for all clicks that fall into the
    same 300-second slot. Slots start at multiples of `window` seconds since 1970 UTC, for everyone:
    two clicks a second apart on the two sides of a slot's edge get two keys. If that matters,
    take a `window` well above the time in which retries come, or a key that the client sends.

    Args:
        parts: text, whole numbers, UUIDs, dates, datetimes with a time zone, or Decimals; at least one, and no empty
            text. "a", "b" and "a|b" give different keys; equal numbers give equal keys, and so do equal moments.
        window: seconds above 0, or a timedelta; None for a key without a time slot.
        at: seconds since 1970, to place the slot by an event's own time; now by default.

    Raises:
        InvalidKeyError: there is no part, a part is empty or of another type, or `window` or `at` is not valid.
    """
    if not parts:
        raise InvalidKeyError("business_key() needs at least one part")
    key = "|".join([key_part(part) for part in parts])
    if window is None:
        return key
    size = seconds_of(window)
    if not (is_number(size) and size >= _SHORTEST_WINDOW):
        raise InvalidKeyError(
            f"window must be seconds, at least {_SHORTEST_WINDOW}, or a timedelta; got {shown(window)}"
        )
    moment = time.time() if at is None else at
    if not is_number(moment):
        raise InvalidKeyError(f"at must be seconds since 1970, got {shown(at)}")
    try:
        slot = math.floor(moment / size)
    except OverflowError:
        raise InvalidKeyError(f"at must be seconds since 1970, {shown(at)} is too far from it") from None
    # No part is empty, so "||" can only stand here.
    return f"{key}||{slot}x{float(size)!r}"


def key_part(part: Any) -> str:
    """Return one part of a business key, with the sign between parts escaped.

    Raises:
        InvalidKeyError: it is empty, of another type, a datetime without a time zone, or not a finite Decimal.
    """
    if type(part) is str and part and "|" not in part and "\\" not in part:
        return part
    match part:
        case bool() | "":
            text = ""
        case str():
            text = str.__str__(part)  # the str() of an enum's member is its name
        case UUID():
            text = str(part)
        case int():
            text = whole_text(part, "a business key")
        case Decimal():
            text = _decimal_text(part)
        case datetime():
            text = _moment_text(part)
        case date():
            text = part.isoformat()
        case _:
            text = ""
    if not text:
        got = "an empty text" if part == "" else type(part).__name__
        raise InvalidKeyError(
            f"a part of a business key must be text, a whole number, a UUID, a date or a Decimal, got {got}"
        )
    return text.replace("\\", "\\\\").replace("|", "\\|")


def _decimal_text(number: Decimal) -> str:
    """Return the same text for equal numbers: "1.1" for 1.10, "100" for 1E+2."""
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int) or abs(exponent) > _LONGEST_ZEROS:
        raise InvalidKeyError(
            f"a Decimal in a business key must be finite, with an exponent from -{_LONGEST_ZEROS} to {_LONGEST_ZEROS}"
        )
    text = f"{number:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _moment_text(moment: datetime) -> str:
    """Return the same text for equal moments, in whatever time zone they are said."""
    if moment.utcoffset() is None:
        raise InvalidKeyError(
            "a datetime in a business key needs a time zone, because its text would depend on the machine: "
            "datetime.now(UTC), or .date() for the day"
        )
    try:
        return moment.astimezone(UTC).isoformat()
    except OverflowError:
        raise InvalidKeyError(
            f"a datetime in a business key must be one that UTC has, got {moment.isoformat()}"
        ) from None
