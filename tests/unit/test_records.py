"""A record's bytes: small, laid out as `lua/_record.lua` says, and read back as they were written."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdedup import Dedup, Fingerprint, Outcome
from fastdedup.kernel.answers import verdict
from fastdedup.kernel.codes import Code
from fastdedup.kernel.owners import draw_owner, owner_field
from fastdedup.kernel.records import decode, decode_machine, tail_of

EMBEDDED = 44
"""Bytes: Redis's limit for a string that needs no allocation of its own."""
NOW = 1_700_000_000_000
PRINT = bytes(range(16))


def build(
    *,
    state: str = "P",
    fence: int = 7,
    left: int = 30_000,
    attempt: int = 1,
    tail: bytes = b"",
    payload: bytes = b"",
) -> bytes:
    """Write a record by the layout's own words, apart from the code that reads it."""
    head = b"\1" + state.encode() + fence.to_bytes(7, "big") + (NOW + left).to_bytes(6, "big")
    return head + struct.pack(">H", attempt) + (tail or b"\0" + b"o" * 10) + payload


def test_a_record_of_a_drawn_owner_is_an_embedded_string() -> None:
    """With a fingerprint, without a payload: 44 bytes, Redis's limit."""
    assert len(build(tail=tail_of(draw_owner(), PRINT))) == EMBEDDED


@given(
    state=st.sampled_from("IPWSFR"),
    fence=st.integers(1, 2**53),
    left=st.integers(-(10**9), 10**9),
    attempt=st.integers(0, 65_535),
    owner=st.binary(min_size=10, max_size=10).map(lambda drawn: b"\0" + drawn)
    | st.text("abé", min_size=1, max_size=31).map(owner_field),
    mark=st.none() | st.binary(min_size=16, max_size=16),
    token=st.booleans(),
    payload=st.binary(max_size=40),
)
def test_every_field_is_read_where_it_was_written(
    state: str,
    fence: int,
    left: int,
    attempt: int,
    owner: bytes,
    mark: bytes | None,
    token: bool,
    payload: bytes,
) -> None:
    """Any owner length, with and without fingerprint, payload and token mark."""
    tail = owner if mark is None else tail_of(owner, mark)
    tail = bytes((tail[0] | 64 * token,)) + tail[1:]
    record = build(state=state, fence=fence, left=left, attempt=attempt, tail=tail, payload=payload)
    stored = decode(record, NOW, ttl_ms=5)
    assert (stored.state, stored.owner, stored.fence, stored.attempt) == (state, owner, fence, attempt)
    assert (stored.left_ms, stored.ttl_ms, stored.fingerprint, stored.payload) == (left, 5, mark, payload)


def test_a_machine_is_read_by_its_own_layout() -> None:
    """Format version, M, the machine's version, the change that made it, the state's name."""
    stored = decode_machine(b"\1M" + (9).to_bytes(7, "big") + b"c" * 10 + b"paid", ttl_ms=5)
    assert (stored.state, stored.fence, stored.owner, stored.payload) == ("M", 9, b"c" * 10, b"paid")
    assert (stored.ttl_ms, stored.left_ms, stored.attempt, stored.fingerprint) == (5, 5, 0, None)


@pytest.mark.parametrize(
    ("code", "outcome", "payload", "fresh"),
    [
        (Code.TAKEN, Outcome.ACQUIRED, b"", True),
        (Code.REENTERED, Outcome.ACQUIRED, b"", False),
        (Code.IN_PROGRESS, Outcome.IN_PROGRESS, b"", True),
        (Code.SUCCEEDED, Outcome.SUCCEEDED, b"[1]", True),
        (Code.FAILED, Outcome.FAILED, b"[1]", True),
        (Code.MISMATCH, Outcome.MISMATCH, b"", True),
    ],
)
def test_a_verdict_shows_what_its_claimant_may_know(
    code: Code, outcome: Outcome, payload: bytes, fresh: bool
) -> None:
    """The payload goes to those whom the outcome entitles to it: not to a MISMATCH."""
    reply: Any = verdict(code, build(fence=5, attempt=3, payload=b"[1]"), NOW)
    assert (reply.outcome, reply.payload, reply.fresh) == (outcome, payload, fresh)
    assert (reply.fence, reply.attempt, reply.left_ms) == (5, 3, 30_000)


def test_a_lease_that_is_over_has_nothing_left() -> None:
    """`retry_after` is never negative."""
    reply: Any = verdict(Code.IN_PROGRESS, build(left=-5), NOW)
    assert reply.left_ms == 0


def test_without_a_record_there_is_only_the_code() -> None:
    """UNKNOWN has nothing to show, FOREIGN must not be read."""
    unknown: Any = verdict(Code.UNKNOWN, b"", NOW)
    assert unknown.outcome is Outcome.UNKNOWN
    assert verdict(Code.FOREIGN, b"", NOW) is Code.FOREIGN


async def test_redis_holds_what_the_layout_says(redis_url: str, redis_server: Any) -> None:
    """A claim with a fingerprint and without a payload, byte for byte, within 44 of them."""
    async with Dedup(redis_url, namespace="t") as dedup:
        claim = await dedup.claim("order:7", fingerprint=Fingerprint(PRINT), lease=10.0, ttl=60.0)
        with redis_server.client() as raw:
            record = raw.get("t:=order:7")
            assert record[:2] == b"\1P"
            assert int.from_bytes(record[2:9], "big") == claim.fence
            assert record[15:17] == b"\0\1"
            assert record[17:] == b"\x80" + bytes.fromhex(claim.owner) + PRINT
            assert len(record) == EMBEDDED
            assert raw.object("encoding", "t:=order:7") == b"embstr"
            lease = int.from_bytes(record[9:15], "big") - -(-claim.fence // 1000)
            assert (lease, 65_000 < raw.pttl("t:=order:7") <= 70_000) == (10_000, True)
        await claim.complete({"a": 1})
        with redis_server.client() as raw:
            assert raw.get("t:=order:7")[17:].endswith(PRINT + b'{"a":1}')
            assert raw.get("t:=order:7")[1:2] == b"S"
