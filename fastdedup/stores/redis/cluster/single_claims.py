"""Packs and reads claims that each need a call of their own: if a Cluster's servers refuse undeclared keys.

`scripts.py` with `pack_parts` takes more than twice the time for a single key (compiled: 2.6 µs, here 1.1). Here it
packs one claim for each set of terms; the key, the owner and the floor of every further claim are filled into that
text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

from ....kernel.operations import ClaimOp, Op, Reply, Verdict
from ....kernel.records import fence_bytes
from ....kernel.terms import Terms
from ....kernel.verbs import Verb
from ....model import Outcome
from ..scripts import CallHead, LoadedScript
from ..verbs import load_scripts
from .slots import slot_of

_ACQUIRED = Outcome.ACQUIRED  # naming an enum's member through its class costs 50 ns on Python 3.11
_KEY, _TAIL, _FLOOR = b"<the key>", b"<the tail>", b"<floor>"


def single_claims(verb: Verb, ops: Sequence[Op]) -> Sequence[ClaimOp] | None:
    """Return the claims if they are best sent one by one: equal terms, and hardly any two in one slot; else None."""
    if verb is not Verb.CLAIM:
        return None
    claims = cast("Sequence[ClaimOp]", ops)
    terms = claims[0].terms
    if terms.remembered or [op.terms for op in claims].count(terms) != len(claims):
        return None
    if b"{" not in b"".join([op.wire for op in claims]):
        return claims  # without hash tags hardly any of the thousands of slots comes twice
    slots = {slot_of(op.wire) for op in claims}
    return claims if len(slots) * 2 > len(claims) else None


def pack_singles(claims: Sequence[ClaimOp], floor_us: int, limit: int) -> bytes:
    """Return an EVALSHA for each claim, joined. `floor_us`: of the first claim; each next floor is one higher."""
    head, middle = _frame(load_scripts()[Verb.CLAIM], claims[0].terms, limit)
    calls = []
    for number, op in enumerate(claims, floor_us):
        floor = fence_bytes(number)
        calls.append(
            b"%b%d\r\n%b\r\n$7\r\n%b%b%d\r\n%b\r\n"
            % (head, len(op.wire), op.wire, floor, middle, len(op.tail), op.tail)
        )
    return b"".join(calls)


def read_singles(
    claims: Sequence[ClaimOp], answers: Sequence[Any], floor_us: int, head: CallHead
) -> list[Reply | None]:
    """Return a reply for each claim; None if the answer is an error. `floor_us`: the floor of `pack_singles`."""
    read = load_scripts()[Verb.CLAIM].read
    lease_ms = claims[0].terms.lease_ms
    replies: list[Reply | None] = []
    told: list[Any] | None = None
    for floor, (op, answer) in enumerate(zip(claims, answers, strict=True), floor_us):
        if type(answer) is not list:
            replies.append(None)
        elif len(answer) == 1:  # only the time: the claim is fresh; see `read_claims`
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
    """Return the bytes before the key's length, and the bytes between the floor and the tail's length."""
    op, floor_us = ClaimOp(_KEY, terms, _TAIL, None), int.from_bytes(_FLOOR, "big")
    head, _, rest = script.command([op], floor_us, limit).partition(
        b"%d\r\n%b\r\n$7\r\n%b" % (len(_KEY), _KEY, _FLOOR)
    )
    return head, rest.partition(b"%d\r\n%b" % (len(_TAIL), _TAIL))[0]
