"""Who holds a claim: an owner is either text of the caller's, or ten random bytes drawn here.

Inside the library an owner is a *field*, as it stands in a record: a length byte, then the bytes.
Length 0 stands for ten random bytes, whose text is 20 hexadecimal digits; so an owner that went
out as text and came back (through an HTTP client, say) is again the same field.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable
from itertools import chain
from typing import Any

from ..errors import InvalidKeyError

RANDOM_BYTES = 10
"""80 bits: owners only have to differ among the claimants of one key."""
MAX_OWNER_BYTES = 63
_DRAWN = re.compile(r"[0-9a-f]{20}")
_POOL_SIZE = 512
_SPLIT = struct.Struct(f"{1 + RANDOM_BYTES}s" * _POOL_SIZE).unpack


_fields: list[bytes] = []
"""The owner fields that one system call has drawn."""


def _draw_many() -> list[bytes]:
    drawn = bytearray(os.urandom((1 + RANDOM_BYTES) * _POOL_SIZE))
    drawn[:: 1 + RANDOM_BYTES] = bytes(_POOL_SIZE)  # the length byte of each
    _fields[:] = _SPLIT(drawn)
    return _fields


# One system call for many: urandom costs as much as the rest of a claim. A chain, as it hands out the next field
# without a Python call.
draw_owner: Callable[[], bytes] = chain.from_iterable(iter(_draw_many, None)).__next__
"""Return a fresh owner field."""

# A forked child inherits the fields that are left; two processes must never share an owner.
if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_fields.clear)


def owner_field(owner: Any) -> bytes:
    """Turn an owner's text into its field.

    Raises:
        InvalidKeyError: not text, empty, or more than 63 bytes of UTF-8.
    """
    if not isinstance(owner, str):
        raise InvalidKeyError(f"an owner is text, not {type(owner).__name__}")
    if _DRAWN.fullmatch(owner):
        return b"\0" + bytes.fromhex(owner)
    data = owner.encode(errors="ignore")
    if data.decode() != owner:  # Python's own error would hold the owner
        raise InvalidKeyError("an owner must be text that UTF-8 can hold, and this one has a lone surrogate")
    if not 0 < len(data) <= MAX_OWNER_BYTES:
        raise InvalidKeyError(
            f"an owner takes 1 to {MAX_OWNER_BYTES} bytes of UTF-8, this one has {len(data)}"
        )
    return bytes((len(data),)) + data


def owner_text(field: bytes) -> str:
    """Turn an owner's field into its text."""
    return field[1:].hex() if field[0] == 0 else field[1:].decode(errors="replace")
