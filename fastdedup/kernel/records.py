"""The bytes of records, in stores and in the arguments and replies of scripts. No other Python code knows them.

`lua/_record.lua` describes the layout. An owner is a field here (see `owners.py`): a length byte, then the bytes. A
*tail* is the part of a record between the attempt and the payload: the owner's field, whose length byte has two
marks more, and the fingerprint. A *holding* is 7 bytes of a fence and the owner's field: with it an owner proves that
a record is its own, and a record names the acquisition before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from .codes import Code
from .owners import MAX_OWNER_BYTES, RANDOM_BYTES

RECORD_HEAD: Final = 128
"""The bytes that a limit of a record leaves for its head."""
MOST_RESULT: Final = 255 * 1024 * 1024
"""The most bytes of a result that a gate may allow: a connection reads no reply that is much longer. Near 2**63 the
limit would overflow in Redis, and every record would be foreign."""
FENCE_BYTES: Final = 7
FINGERPRINT_BYTES: Final = 16
_PRINTED, _TOKEN, _LENGTH = 128, 64, 63
"""Bits of the shape, the owner's length byte in a record: has a fingerprint; is a token; the owner's length."""


MAX_FENCE: Final = 31 << 48
"""Every record's fence or version is below this number; a clock's microseconds reach it in the year 2246."""
_MAX_DEADLINE: Final = 8 << 40
"""Every record's deadline is below this number; a clock's milliseconds reach it in the year 2248."""
_MAX_STATE: Final = 64
_ISSUED, _MACHINE = b"IM"
_STATES: Final = b"IPWSFRM"
_SHAPE_AT: Final = 17
LONGEST_HEAD: Final = _SHAPE_AT + 1 + MAX_OWNER_BYTES + FINGERPRINT_BYTES
"""The most bytes of a record without its payload."""


class Holding(NamedTuple):
    """One acquisition of a key: an owner that acquires a key twice gets two fences.

    For a state machine the owner is the last change, and the fence is the version.
    """

    owner: bytes
    fence: int


class Stored:
    """A record in a store. `state` is a letter: I P W S F R, or M for a machine (see `lua/_record.lua`)."""

    __slots__ = ("attempt", "fence", "fingerprint", "left_ms", "owner", "payload", "state", "token", "ttl_ms")

    def __init__(
        self,
        state: str,
        *,
        owner: bytes,
        fence: int,
        attempt: int,
        left_ms: int,
        ttl_ms: int,
        fingerprint: bytes | None,
        payload: bytes,
        token: bool = False,
    ) -> None:
        self.state = state
        self.token = token
        self.owner = owner
        self.fence = fence
        self.attempt = attempt
        self.left_ms = left_ms
        self.ttl_ms = ttl_ms
        self.fingerprint = fingerprint
        self.payload = payload


fence_bytes: Final[Callable[[int], bytes]] = partial(int.to_bytes, length=FENCE_BYTES, byteorder="big")
"""Returns the bytes of a fence or version in a record. It is not a Python function, because each command calls it."""


def holding_bytes(owner: bytes, fence: int) -> bytes:
    """Return a holding: with it an owner proves that a record is its own. Fence 0 stands for any fence."""
    return fence_bytes(fence) + owner


def read_holding(data: bytes) -> Holding:
    """Read what `holding_bytes` returned."""
    return Holding(data[FENCE_BYTES:], int.from_bytes(data[:FENCE_BYTES], "big"))


def read_proof(data: bytes) -> Holding:
    """Read a holding from another process. ValueError: the owner's length is not the one that it states."""
    holding = read_holding(data)
    check_owner(holding.owner)
    return holding


def tail_of(owner: bytes, fingerprint: bytes | None, *, token: bool = False) -> bytes:
    """Return a record's tail: the owner's field with the marks of a fingerprint and of a token; the fingerprint."""
    marks = (0 if fingerprint is None else _PRINTED) | (_TOKEN if token else 0)
    return bytes((owner[0] | marks,)) + owner[1:] + (fingerprint or b"") if marks else owner


def read_tail(tail: bytes, *, token: bool = False) -> tuple[bytes, bytes | None]:
    """Read what `tail_of` returned, from another process: return the owner's field and the fingerprint.

    Raises:
        ValueError: the owner's length is not the one that it states, or the tail is not a token's.
    """
    shape = tail[0] ^ (_TOKEN if token else 0)
    if shape & _TOKEN:
        raise ValueError("a token's mark")
    printed = shape & _PRINTED
    if printed and len(tail) <= FINGERPRINT_BYTES:
        # Compiled, a slice that ends before it begins is a SystemError.
        raise ValueError("an owner must be as long as it says")
    owner = bytes((shape & _LENGTH,)) + (tail[1:-FINGERPRINT_BYTES] if printed else tail[1:])
    check_owner(owner)
    return owner, tail[-FINGERPRINT_BYTES:] if printed else None


def check_owner(field: bytes) -> None:
    """Raise ValueError for an owner's field from another process whose length is not the one that it states."""
    if len(field) != 1 + (field[0] or RANDOM_BYTES) or field[0] > MAX_OWNER_BYTES:
        raise ValueError("an owner must be as long as it says")


def is_record(record: bytes) -> bool:
    """True for a record that can be read and written again; the same check as `checked` in `_record.lua`."""
    if len(record) < 19 or record[0] != 1 or record[1] not in _STATES or record[2] >= MAX_FENCE >> 48:
        return False
    state = record[1]
    if state == _MACHINE:
        return is_state(record[19:])
    if record[9] >= _MAX_DEADLINE >> 40 or (state != _ISSUED and not (record[15] or record[16])):
        return False
    shape = record[_SHAPE_AT]
    owner_end = _SHAPE_AT + 1 + ((shape & _LENGTH) or RANDOM_BYTES)
    return len(record) >= owner_end + (FINGERPRINT_BYTES if shape & _PRINTED else 0)


def is_state(name: bytes) -> bool:
    """True for a possible name of a machine's state: 1 to 64 bytes of UTF-8."""
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return 0 < len(name) <= _MAX_STATE


def read_record(record: bytes, now_ms: int, ttl_ms: int = 0) -> Stored | Code:
    """Read any record; return FOREIGN for a value that is not a record. Never raises."""
    if not is_record(record):
        return Code.FOREIGN
    return decode_machine(record, ttl_ms) if record[1] == _MACHINE else decode(record, now_ms, ttl_ms)


def decode(record: bytes, now_ms: int, ttl_ms: int = 0) -> Stored:
    """Read the record of a claim, token or lock. The caller has checked it with `is_record`."""
    shape = record[_SHAPE_AT]
    owner_end = _SHAPE_AT + 1 + ((shape & _LENGTH) or RANDOM_BYTES)
    payload_at = owner_end + (FINGERPRINT_BYTES if shape & _PRINTED else 0)
    return Stored(
        chr(record[1]),
        owner=bytes((shape & _LENGTH,)) + record[_SHAPE_AT + 1 : owner_end],
        fence=int.from_bytes(record[2:9], "big"),
        attempt=int.from_bytes(record[15:17], "big"),
        left_ms=int.from_bytes(record[9:15], "big") - now_ms,
        ttl_ms=ttl_ms,
        fingerprint=record[owner_end:payload_at] or None,
        payload=record[payload_at:],
        token=bool(shape & _TOKEN),
    )


def encode(stored: Stored) -> bytes:
    """Build a record in the scripts' layout. Its deadline is zero: `adopt.lua` sets it from the server's clock."""
    head = b"\1" + stored.state.encode() + fence_bytes(stored.fence)
    if stored.state == "M":
        return head + stored.owner + stored.payload
    tail = tail_of(stored.owner, stored.fingerprint, token=stored.token)
    return head + bytes(6) + stored.attempt.to_bytes(2, "big") + tail + stored.payload


def decode_machine(record: bytes, ttl_ms: int) -> Stored:
    """Read the record of a state machine: the version becomes `fence`, the state `payload`. See `decode`."""
    return Stored(
        "M",
        owner=record[9:19],
        fence=int.from_bytes(record[2:9], "big"),
        attempt=0,
        left_ms=ttl_ms,
        ttl_ms=ttl_ms,
        fingerprint=None,
        payload=record[19:],
    )
