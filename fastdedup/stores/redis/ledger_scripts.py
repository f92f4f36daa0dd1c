"""The Python side of the ledgers' scripts: `first.lua`, `seen.lua`, `forget_id.lua`, `weigh.lua` and `ledger.lua`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from ...protocol.ledgers import FirstOp, ForgetIdOp, LedgerOp, SeenOp, WeighOp
from ...protocol.operations import Code, Op, Reply, StoredForm, Weight
from .scripts import Args, answer_of, ceil_ms

_OK: Final = Code.OK
_ALREADY_CODE: Final = Code.ALREADY.value
_ALREADY: Final = Code.ALREADY


class FirstScript:
    """`first.lua`."""

    def pack(self, ops: Sequence[FirstOp]) -> Args:
        """See the header of the script."""
        args: Args = []
        for terms, run in groupby(ops, attrgetter("terms")):
            entries = [op.entry for op in run]
            args += [len(entries), terms.slot_us, terms.keep_ms, terms.width, terms.young, terms.named]
            args += [terms.most, terms.until_ms, *entries]
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


class SeenScript:
    """`seen.lua`."""

    def pack(self, ops: Sequence[SeenOp]) -> Args:
        """See the header of the script."""
        args: Args = []
        for terms, run in groupby(ops, attrgetter("terms")):
            digests = [op.digest for op in run]
            args += [len(digests), terms.slot_us, terms.width, terms.until_ms, *digests]
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
        """Return three arguments for each operation."""
        args: Args = []
        for op in ops:
            args += [op.ttl_ms, op.former, op.form]
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
