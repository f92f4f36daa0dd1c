"""The Python side of the ledgers' scripts: `first.lua`, `seen.lua`, `forget_id.lua`, `weigh.lua` and `ledger.lua`.

And of the claims whose success a ledger remembers: `claim_remembered.lua` and `settle_remembered.lua`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from ...kernel.answers import verdict
from ...kernel.codes import Code
from ...kernel.operations import Op, Reply, StoredForm, Verdict, Weight
from ...kernel.records import holding_bytes
from ...ledger.operations import (
    FirstOp,
    ForgetIdOp,
    LedgerOp,
    LedgerTerms,
    RememberedClaimOp,
    RememberedSettleOp,
    SeenOp,
    WeighOp,
)
from ...model import Outcome
from .scripts import ONLY_CODES, Args, answer_of, ceil_ms, codes

_OK: Final = Code.OK
_ALREADY_CODE: Final = Code.ALREADY.value
_ALREADY: Final = Code.ALREADY


class FirstScript:
    """`first.lua`."""

    def pack(self, ops: Sequence[FirstOp]) -> Args:
        """See the header of the script."""
        terms = ops[0].terms
        # Nearly always of a single ledger; `count` compares by identity first.
        if [op.terms for op in ops].count(terms) == len(ops):
            return [len(ops), *ledger_header(terms), *[op.entry for op in ops]]
        args: Args = []
        for terms, run in groupby(ops, attrgetter("terms")):
            entries = [op.entry for op in run]
            args += [len(entries), *ledger_header(terms), *entries]
        return args

    def read(self, ops: Sequence[FirstOp], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
        """Return OK for each operation that the reply does not name, else its code."""
        answers: list[Reply] = [_OK] * len(ops)
        for at in range(3, len(reply), 2):
            place = reply[at] - 1
            code = reply[at + 1]
            answers[place] = _ALREADY if code == _ALREADY_CODE else answer_of(ops[place], code)
        if reply[2]:
            ops[0].terms.saw_fill(reply[2], len(ops))
        return answers


def ledger_header(terms: LedgerTerms) -> Args:
    """Return what a run says of its ledger, where ids are remembered."""
    header: Args = [terms.slot_us, terms.keep_ms, terms.width, terms.young]
    return [*header, terms.named, terms.most, terms.until_ms]


class SeenScript:
    """`seen.lua`."""

    def pack(self, ops: Sequence[SeenOp]) -> Args:
        """See the header of the script."""
        args: Args = []
        for terms, run in groupby(ops, attrgetter("terms")):
            entries = [op.entry for op in run]
            args += [len(entries), terms.slot_us, terms.width, terms.until_ms, terms.from_ms, *entries]
        return args

    def read(self, ops: Sequence[Op], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
        """Read a code for each operation."""
        return [answer_of(op, code) for op, code in zip(ops, reply[1:], strict=True)]


class ForgetIdScript:
    """`forget_id.lua`."""

    def pack(self, ops: Sequence[ForgetIdOp]) -> Args:
        """See the header of the script."""
        args: Args = []
        for (terms, until_ms), run in groupby(ops, attrgetter("terms", "until_ms")):
            entries = [op.entry for op in run]
            args += [len(entries), terms.slot_us, terms.width, until_ms, *entries]
        return args

    def read(self, ops: Sequence[Op], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
        """Read a code for each operation."""
        return [answer_of(op, code) for op, code in zip(ops, reply[1:], strict=True)]


class LedgerScript:
    """`ledger.lua`."""

    def pack(self, ops: Sequence[LedgerOp]) -> Args:
        """Return four arguments for each operation."""
        args: Args = []
        for op in ops:
            args += [op.ttl_ms, op.former, op.form, op.until_ms]
        return args

    def read(self, ops: Sequence[Op], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
        """Read a pair for each operation."""
        now_ms = ceil_ms(reply[0])
        pairs = zip(ops, reply[1::2], reply[2::2], strict=True)
        return [StoredForm(text, now_ms) if code == 0 else answer_of(op, code) for op, code, text in pairs]


class WeighScript:
    """`weigh.lua`."""

    def pack(self, ops: Sequence[WeighOp]) -> Args:
        """Return two arguments for each operation."""
        args: Args = []
        for op in ops:
            args += [op.terms.slot_us, op.terms.width]
        return args

    def read(self, ops: Sequence[Op], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
        """Read four numbers for each operation."""
        found = zip(ops, *(reply[at::4] for at in range(1, 5)), strict=True)
        return [
            Weight(entries, living, size) if code == 0 else answer_of(op, code)
            for op, code, entries, living, size in found
        ]


class RememberedClaimScript:
    """`claim_remembered.lua`."""

    def pack(self, ops: Sequence[RememberedClaimOp]) -> Args:
        """See the header of the script."""
        args: Args = []
        for (terms, ledger), run in groupby(ops, attrgetter("terms", "ledger_terms")):
            stretch = list(run)
            args += [len(stretch), *terms.header, ledger.slot_us, ledger.width, ledger.until_ms]
            for op in stretch:
                args.append(op.tail)
                args.append(op.digest)
        return args

    def read(self, ops: Sequence[RememberedClaimOp], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
        """Return a Verdict for each claim, or STALE."""
        now_us = reply[0]
        fence, now_ms = max(now_us, floor_us + 1), ceil_ms(now_us)
        verdicts: list[Reply] = [
            Verdict(Outcome.ACQUIRED, fence=fence, attempt=1, left_ms=op.terms.lease_ms) for op in ops
        ]
        for at in range(1, len(reply), 3):
            place = reply[at] - 1
            verdicts[place] = self._met(ops[place], reply[at + 1], reply[at + 2], now_ms)
        return verdicts

    def _met(self, op: RememberedClaimOp, code: int, record: bytes, now_ms: int) -> Reply:
        if code == Code.UNKNOWN:
            return Verdict(Outcome.SUCCEEDED)
        if code in ONLY_CODES or code == Code.STALE:
            return answer_of(op, code)
        return verdict(code, record, now_ms)


class RememberedSettleScript:
    """`settle_remembered.lua`."""

    def pack(self, ops: Sequence[RememberedSettleOp]) -> Args:
        """See the header of the script."""
        args: Args = []
        for (terms, keep_ms), run in groupby(ops, attrgetter("ledger_terms", "keep_ms")):
            stretch = list(run)
            args += [len(stretch), *ledger_header(terms), keep_ms]
            for op in stretch:
                args += [holding_bytes(op.owner, op.fence), op.payload, op.entry]
        return args

    def read(self, ops: Sequence[RememberedSettleOp], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
        """Return OK for each operation that the reply does not name, else its code."""
        if reply[2]:
            ops[0].ledger_terms.saw_fill(reply[2], len(ops))
        return codes(ops, reply[2:])
