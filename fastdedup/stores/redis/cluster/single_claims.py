"""Claims that travel one by one, on a Cluster nearly always: packed and read without an object for each.

The long way (`scripts.py`, by `pack_parts`) costs four times as much for a single key; here
it is gone once for all claims of the same terms, and what differs is filled in.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

from ....model import Outcome
from ....protocol.operations import ClaimOp, Op, Reply, Terms, Verb, Verdict
from ..scripts import CallHead, LoadedScript
from ..verbs import load_scripts
from .slots import slot_of

_ACQUIRED = Outcome.ACQUIRED  # naming an enum's member through its class costs 50 ns on Python 3.11
_KEY, _TAIL, _FLOOR = b"<the key>", b"<the tail>", b"<floor>"


def single_claims(verb: Verb, ops: Sequence[Op]) -> Sequence[ClaimOp] | None:
    """Return claims that are best sent one by one: of equal terms, and hardly any two in one slot."""
    if verb is not Verb.CLAIM:
        return None
    claims = cast("Sequence[ClaimOp]", ops)
    terms = claims[0].terms
    if [op.terms for op in claims].count(terms) != len(claims):
        return None
    if b"{" not in b"".join([op.wire for op in claims]):
        return claims  # no hash tags, so of thousands of slots hardly any comes twice
    slots = {slot_of(op.wire) for op in claims}
    return claims if len(slots) * 2 > len(claims) else None


def pack_singles(claims: Sequence[ClaimOp], floor_us: int, limit: int) -> bytes:
    """Return an EVALSHA for each, joined. `floor_us`: of the first; those behind it have one more each."""
    head, middle = _frame(load_scripts()[Verb.CLAIM], claims[0].terms, limit)
    calls = []
    for number, op in enumerate(claims, floor_us):
        floor = number.to_bytes(7, "big")
        calls.append(
            b"%b%d\r\n%b\r\n$7\r\n%b%b%d\r\n%b\r\n"
            % (head, len(op.wire), op.wire, floor, middle, len(op.tail), op.tail)
        )
    return b"".join(calls)


def read_singles(
    claims: Sequence[ClaimOp], answers: Sequence[Any], floor_us: int, head: CallHead
) -> list[Reply | None]:
    """Return a reply for each; None for an answer that is an error. `floor_us`: as they were packed with."""
    read = load_scripts()[Verb.CLAIM].read
    lease_ms = claims[0].terms.lease_ms
    replies: list[Reply | None] = []
    told: list[Any] | None = None
    for floor, (op, answer) in enumerate(zip(claims, answers, strict=True), floor_us):
        if type(answer) is not list:
            replies.append(None)
        elif len(answer) == 1:  # only the time: it is fresh, as `ClaimScript.read` says
            told, fence = answer, max(answer[0], floor + 1)
            replies.append(Verdict(_ACQUIRED, fence=fence, attempt=1, left_ms=lease_ms))
        else:
            reply = read((op,), answer, floor)
            head.saw(answer, reply)
            replies += reply
    if told is not None:
        head.saw(told, ())
    return replies


@lru_cache(maxsize=1024)
def _frame(script: LoadedScript, terms: Terms, limit: int) -> tuple[bytes, bytes]:
    """Return what stands before the key's length, and between the floor and the tail's length."""
    op, floor_us = ClaimOp(_KEY, terms, _TAIL, None), int.from_bytes(_FLOOR, "big")
    head, _, rest = script.command([op], floor_us, limit).partition(
        b"%d\r\n%b\r\n$7\r\n%b" % (len(_KEY), _KEY, _FLOOR)
    )
    return head, rest.partition(b"%d\r\n%b" % (len(_TAIL), _TAIL))[0]
