"""Reads and builds the bytes of records. `lua/_record.lua` describes the layout."""

from __future__ import annotations

from typing import Final

from ...kernel.operations import Code, Stored, Verdict, with_fingerprint
from ...model import Outcome

_OUTCOMES: Final = {
    Code.REENTERED: Outcome.ACQUIRED,
    Code.TAKEN: Outcome.ACQUIRED,
    Code.IN_PROGRESS: Outcome.IN_PROGRESS,
    Code.SUCCEEDED: Outcome.SUCCEEDED,
    Code.FAILED: Outcome.FAILED,
    Code.MISMATCH: Outcome.MISMATCH,
}


MAX_FENCE: Final = 31 << 48
"""Every record's fence or version is below this number; a clock's microseconds reach it in the year 2246."""
_MAX_DEADLINE: Final = 8 << 40
"""Every record's deadline is below this number; a clock's milliseconds reach it in the year 2248."""
_MAX_STATE: Final = 64
_ISSUED, _MACHINE = b"IM"
_STATES: Final = b"IPWSFRM"


def is_record(record: bytes) -> bool:
    """True for a record that can be read and written again; the same check as `checked` in `_record.lua`."""
    if len(record) < 19 or record[0] != 1 or record[1] not in _STATES or record[2] >= MAX_FENCE >> 48:
        return False
    state = record[1]
    if state == _MACHINE:
        return is_state(record[19:])
    if record[9] >= _MAX_DEADLINE >> 40 or (state != _ISSUED and not (record[15] or record[16])):
        return False
    shape = record[17]
    return len(record) >= 18 + ((shape & 63) or 10) + (16 if shape & 128 else 0)


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
    shape = record[17]
    owner_end = 18 + ((shape & 63) or 10)
    payload_at = owner_end + (16 if shape & 128 else 0)
    return Stored(
        chr(record[1]),
        owner=bytes((shape & 63,)) + record[18:owner_end],
        fence=int.from_bytes(record[2:9], "big"),
        attempt=int.from_bytes(record[15:17], "big"),
        left_ms=int.from_bytes(record[9:15], "big") - now_ms,
        ttl_ms=ttl_ms,
        fingerprint=record[owner_end:payload_at] or None,
        payload=record[payload_at:],
        token=bool(shape & 64),
    )


def encode(stored: Stored) -> bytes:
    """Build a record in the scripts' layout. Its deadline is zero: `adopt.lua` sets it by the server's clock."""
    head = b"\1" + stored.state.encode() + stored.fence.to_bytes(7, "big")
    if stored.state == "M":
        return head + stored.owner + stored.payload
    tail = stored.owner if stored.fingerprint is None else with_fingerprint(stored.owner, stored.fingerprint)
    if stored.token:
        tail = bytes((tail[0] | 64,)) + tail[1:]
    return head + bytes(6) + stored.attempt.to_bytes(2, "big") + tail + stored.payload


def decode_machine(record: bytes, ttl_ms: int) -> Stored:
    """Read the record of a state machine: the version becomes `fence`, the state `payload`. Else as `decode`."""
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


def verdict(code: int, record: bytes, now_ms: int) -> Verdict | Code:
    """Return the answer to a claim from a script's code and the record that the claim found."""
    if code == Code.UNKNOWN:
        return Verdict(Outcome.UNKNOWN)
    if code == Code.FOREIGN or not is_record(record):
        return Code.FOREIGN
    stored = decode(record, now_ms)
    found = Verdict(
        _OUTCOMES[Code(code)],
        fence=stored.fence,
        attempt=stored.attempt,
        left_ms=max(stored.left_ms, 0),
        payload=stored.payload if code in (Code.SUCCEEDED, Code.FAILED) else b"",
        fresh=code != Code.REENTERED,
    )
    if code == Code.TAKEN:
        found.former = stored.payload  # a record that was just taken has none of its own
    elif code != Code.REENTERED:
        found.present = stored.owner
    return found
