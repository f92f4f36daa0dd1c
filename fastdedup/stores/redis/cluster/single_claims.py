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
from ..packing import pack
from ..scripts import LoadedScript, load_scripts
from .slots import slot_of

_ACQUIRED = Outcome.ACQUIRED  # naming an enum's member through its class costs 50 ns on Python 3.11
_KEY, _TAIL = b"<the key>", b"<the tail>"


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


def pack_singles(claims: Sequence[ClaimOp]) -> bytes:
    """Return an EVALSHA for each, joined."""
    head, middle = _frame(load_scripts()[Verb.CLAIM], claims[0].terms)
    return b"".join(
        [
            b"%b%d\r\n%b%b%d\r\n%b\r\n" % (head, len(op.wire), op.wire, middle, len(op.tail), op.tail)
            for op in claims
        ]
    )


def read_singles(claims: Sequence[ClaimOp], answers: Sequence[Any]) -> list[Reply | None]:
    """Return a reply for each; None for an answer that is none."""
    read = load_scripts()[Verb.CLAIM].read
    lease_ms = claims[0].terms.lease_ms
    replies: list[Reply | None] = []
    for op, answer in zip(claims, answers, strict=True):
        if type(answer) is not list:
            replies.append(None)
        elif len(answer) == 1:  # only the time: it is fresh, as `ClaimScript.read` says
            replies.append(Verdict(_ACQUIRED, fence=answer[0], attempt=1, left_ms=lease_ms))
        else:
            replies += read((op,), answer)
    return replies


@lru_cache(maxsize=1024)
def _frame(script: LoadedScript, terms: Terms) -> tuple[bytes, bytes]:
    """Return what stands before the key's length, and between the key and the tail's length."""
    op = ClaimOp(_KEY, terms, _TAIL, None)
    packed = pack("EVALSHA", script.sha, 1, _KEY, *script.pack([op]))
    head, _, rest = packed.partition(b"%d\r\n%b" % (len(_KEY), _KEY))
    return head, rest.partition(b"%d\r\n%b" % (len(_TAIL), _TAIL))[0]
