"""Claims packed and read one by one say the same as the long way."""

from __future__ import annotations

from typing import Any

import hiredis
from hypothesis import given
from hypothesis import strategies as st

from fastdedup.kernel.operations import ClaimOp, ReadOp
from fastdedup.kernel.terms import Mode, Terms, terms
from fastdedup.kernel.verbs import Verb
from fastdedup.stores.redis.cluster.single_claims import pack_singles, read_singles, single_claims
from fastdedup.stores.redis.scripts import CallHead, pack
from fastdedup.stores.redis.verbs import load_scripts

CLAIM = load_scripts()[Verb.CLAIM]
TERMS = terms(Mode.CLAIM, 30_000, 86_430_000, False)
NOW = 1_700_000_000_000_000
FLOOR, LIMIT = 99_999, 1000

claims = st.builds(
    lambda wire, shared, owner, mark: ClaimOp(wire, shared, bytes((len(owner),)) + owner, mark),
    st.binary(min_size=1, max_size=60),
    st.just(TERMS),
    st.binary(min_size=1, max_size=20),
    st.none() | st.binary(min_size=16, max_size=16),
)


def long(op: ClaimOp, floor_us: int) -> bytes:
    """The same claim by the script's own arguments."""
    return pack("EVALSHA", CLAIM.sha, 1, op.wire, floor_us.to_bytes(7, "big"), LIMIT, *CLAIM.call([op])[1])


@given(st.lists(claims, min_size=1, max_size=8))
def test_a_packed_claim_is_the_same_bytes(ops: list[ClaimOp]) -> None:
    """As `hiredis.pack_command` makes of the script's own arguments."""
    long_way = [long(op, FLOOR + place) for place, op in enumerate(ops)]
    assert pack_singles(ops, FLOOR, LIMIT) == b"".join(long_way)


def test_every_mode_and_term_is_packed_as_it_is() -> None:
    """Each has a frame of its own."""
    for each in (terms(mode, 1, 7, watch) for mode in Mode for watch in (False, True)):
        op = ClaimOp(b"<the key>", each, b"\0<the tail>", None)
        assert pack_singles([op], FLOOR, LIMIT) == long(op, FLOOR)


def test_a_read_answer_is_the_same_verdict() -> None:
    """Fresh, found in progress, and no answer at all."""
    op = ClaimOp(b"key", TERMS, b"\1o", None)
    record = b"\1P" + (NOW - 1).to_bytes(7, "big") + (NOW // 1000 + 9).to_bytes(6, "big") + b"\0\1\1x"
    answers: list[list[Any]] = [[NOW], [NOW, 1, 3, record]]
    for answer in answers:
        [short], [long] = read_singles([op], [answer], FLOOR, CallHead()), CLAIM.read([op], answer, FLOOR)
        for name in (
            "outcome",
            "attempt",
            "degraded",
            "fence",
            "fresh",
            "left_ms",
            "payload",
            "underreplicated",
            "value",
        ):
            assert getattr(short, name) == getattr(long, name), name
    assert read_singles([op], [hiredis.ReplyError("MOVED 1 host:7000")], FLOOR, CallHead()) == [None]


def test_only_claims_of_equal_terms_that_share_no_slot_go_one_by_one() -> None:
    """For what has a slot in common, one call is cheaper."""
    other: Terms = terms(Mode.CLAIM, 1, 2, False)

    def ops(*wires: bytes) -> list[ClaimOp]:
        return [ClaimOp(wire, TERMS, b"\1o", None) for wire in wires]

    assert single_claims(Verb.CLAIM, ops(b"a", b"b", b"{c}1", b"{c}2"))
    assert single_claims(Verb.CLAIM, ops(b"a"))
    assert single_claims(Verb.CLAIM, ops(b"{c}1", b"{c}2", b"{c}3", b"{c}4")) is None
    assert single_claims(Verb.CLAIM, [*ops(b"a"), ClaimOp(b"b", other, b"\1o", None)]) is None
    assert single_claims(Verb.READ, [ReadOp(b"a")]) is None
