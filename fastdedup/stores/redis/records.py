"""A record's bytes, read. The layout stands in `lua/_record.lua`, which alone writes it."""

from __future__ import annotations

from ...model import Outcome
from ...protocol.operations import Code, Stored, Verdict, with_fingerprint

_OUTCOMES = {
    Code.REENTERED: Outcome.ACQUIRED,
    Code.TAKEN: Outcome.ACQUIRED,
    Code.IN_PROGRESS: Outcome.IN_PROGRESS,
    Code.SUCCEEDED: Outcome.SUCCEEDED,
    Code.FAILED: Outcome.FAILED,
    Code.MISMATCH: Outcome.MISMATCH,
}


def decode(record: bytes, now_ms: int, ttl_ms: int = 0) -> Stored:
    """Take a record of a claim, token or lock apart."""
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
    """Put a record together as the scripts would; its deadline is zero, `adopt.lua` sets it by its own clock."""
    head = b"\1" + stored.state.encode() + stored.fence.to_bytes(7, "big")
    if stored.state == "M":
        return head + stored.owner + stored.payload
    tail = stored.owner if stored.fingerprint is None else with_fingerprint(stored.owner, stored.fingerprint)
    if stored.token:
        tail = bytes((tail[0] | 64,)) + tail[1:]
    return head + bytes(6) + stored.attempt.to_bytes(2, "big") + tail + stored.payload


def decode_machine(record: bytes, ttl_ms: int) -> Stored:
    """Take a state machine's record apart: its version is the fence, its state the payload."""
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
    """Judge a claim that met a record."""
    if code == Code.UNKNOWN:
        return Verdict(Outcome.UNKNOWN)
    if code == Code.FOREIGN:
        return Code.FOREIGN
    stored = decode(record, now_ms)
    return Verdict(
        _OUTCOMES[Code(code)],
        fence=stored.fence,
        attempt=stored.attempt,
        left_ms=max(stored.left_ms, 0),
        payload=stored.payload if code in (Code.SUCCEEDED, Code.FAILED) else b"",
        fresh=code != Code.REENTERED,
    )
