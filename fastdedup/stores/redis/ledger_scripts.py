"""Reads the replies of the ledgers' scripts, and of settlings, which a ledger may take part in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from ...kernel.codes import Code
from ...kernel.operations import Op, Reply, SettleOp
from ...kernel.replies import StoredForm, Weight
from ...ledger.operations import FirstOp, LedgerPlace
from .scripts import answer_of, ceil_ms, ops_of_keys

_OK: Final = Code.OK
_ALREADY_CODE: Final = Code.ALREADY.value
_ALREADY: Final = Code.ALREADY


def read_first(ops: Sequence[FirstOp], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
    """Return OK for each operation that the reply does not name, else its code."""
    answers: list[Reply] = [_OK] * len(ops)
    for at in range(3, len(reply), 2):
        place = reply[at] - 1
        code = reply[at + 1]
        answers[place] = _ALREADY if code == _ALREADY_CODE else answer_of(ops[place], code)
    if reply[2]:
        ops[0].terms.saw_fill(reply[2], len(ops))
    return answers


def read_ledgers(ops: Sequence[Op], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
    """Read a pair for each operation."""
    now_ms = ceil_ms(reply[0])
    pairs = zip(ops, reply[1::2], reply[2::2], strict=True)
    return [StoredForm(text, now_ms) if code == 0 else answer_of(op, code) for op, code, text in pairs]


def read_weights(ops: Sequence[Op], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
    """Read four numbers for each operation."""
    found = zip(ops, *(reply[at::4] for at in range(1, 5)), strict=True)
    return [
        Weight(entries, living, size) if code == 0 else answer_of(op, code)
        for op, code, entries, living, size in found
    ]


def read_settlings(ops: Sequence[SettleOp], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
    """Return OK for each operation that the reply does not name, else its code."""
    answers: list[Reply] = [_OK] * len(ops)
    if len(reply) == 1:
        return answers
    places = ops_of_keys(ops)
    for at in range(1, len(reply), 2):
        key, code = reply[at], reply[at + 1]
        if key:
            place = places[key - 1]
            answers[place] = answer_of(ops[place], code)
        elif code:
            noted = [op.also for op in ops if op.also is not None]
            cast(LedgerPlace, noted[0]).terms.saw_fill(code, len(noted))
    return answers
