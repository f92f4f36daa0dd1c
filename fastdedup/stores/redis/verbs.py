"""The Python side of the scripts other than `claim.lua`, a class for each verb, and the table of all scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, assert_never

from ...kernel.codes import Code
from ...kernel.operations import (
    Adopted,
    AdoptOp,
    IssueOp,
    Op,
    ReleaseOp,
    RenewOp,
    Reply,
    SettleOp,
    TransitionOp,
    TransitionReply,
)
from ...kernel.records import Stored, encode, holding_bytes, is_state, read_record, tail_of
from ...kernel.verbs import Keys, Verb
from .ledger_scripts import (
    FirstScript,
    ForgetIdScript,
    LedgerScript,
    RememberedClaimScript,
    RememberedSettleScript,
    SeenScript,
    WeighScript,
)
from .scripts import (
    ONLY_CODES,
    Args,
    ClaimScript,
    LoadedScript,
    Script,
    TwoKeyScript,
    answer_of,
    ceil_ms,
    codes,
)

_FOREIGN, _TOO_LARGE = Code.FOREIGN.value, Code.TOO_LARGE.value


class SettleScript:
    """`settle.lua`."""

    def pack(self, ops: Sequence[SettleOp]) -> Args:
        """See the header of the script."""
        args: Args = []
        for (succeeded, keep_ms), run in groupby(ops, attrgetter("succeeded", "keep_ms")):
            stretch = list(run)
            args += [len(stretch), "S" if succeeded else "F", keep_ms]
            for op in stretch:
                args.append(holding_bytes(op.owner, op.fence))
                args.append(op.payload)
        return args

    def read(self, ops: Sequence[SettleOp], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
        """Return OK for each operation that the reply does not name, else its code."""
        return codes(ops, reply)


class ReleaseScript:
    """`release.lua`."""

    def pack(self, ops: Sequence[ReleaseOp]) -> Args:
        """See the header of the script."""
        args: Args = []
        for consumed, run in groupby(ops, attrgetter("consumed")):
            proofs = [holding_bytes(op.owner, op.fence) for op in run]
            args += [len(proofs), int(consumed), *proofs]
        return args

    def read(self, ops: Sequence[ReleaseOp], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
        """Return OK for each operation that the reply does not name, else its code."""
        return codes(ops, reply)


class RenewScript:
    """`renew.lua`."""

    def pack(self, ops: Sequence[RenewOp]) -> Args:
        """See the header of the script."""
        args: Args = []
        for (lease_ms, keep_ms), run in groupby(ops, attrgetter("lease_ms", "keep_ms")):
            proofs = [holding_bytes(op.owner, op.fence) for op in run]
            args += [len(proofs), lease_ms, keep_ms, *proofs]
        return args

    def read(self, ops: Sequence[RenewOp], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
        """Return OK for each operation that the reply does not name, else its code."""
        return codes(ops, reply)


class IssueScript:
    """`issue.lua`."""

    def pack(self, ops: Sequence[IssueOp]) -> Args:
        """See the header of the script."""
        args: Args = []
        for ttl_ms, run in groupby(ops, attrgetter("ttl_ms")):
            tails = [tail_of(op.issuer, op.fingerprint, token=True) for op in run]
            args += [len(tails), ttl_ms, *tails]
        return args

    def read(self, ops: Sequence[IssueOp], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
        """Return OK for each operation that the reply does not name, else its code."""
        return codes(ops, reply)


class TransitionScript:
    """`transition.lua`."""

    def pack(self, ops: Sequence[TransitionOp]) -> Args:
        """See the header of the script."""
        args: Args = []
        for op in ops:
            sources = "\n" + "".join(f"{state}\n" for state in sorted(op.sources))
            version = "" if op.version is None else op.version
            args += [op.keep_ms, op.change, version, op.to, op.initial, sources, "1" if op.resent else ""]
        return args

    def read(self, ops: Sequence[TransitionOp], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
        """Read a triple for each operation."""
        moves = zip(ops, triples(reply), strict=True)
        return [self._one(op, code, version, state) for op, (code, version, state) in moves]

    def _one(self, op: TransitionOp, code: int, version: int, state: bytes) -> Reply:
        if code in ONLY_CODES:
            return answer_of(op, code)
        if code == _FOREIGN or not is_state(state):
            return TransitionReply(Code.FOREIGN, "", 0)
        return TransitionReply(Code(code), state.decode(), version)


class ReadScript:
    """`read.lua`."""

    def pack(self, ops: Sequence[Op]) -> Args:
        """Return no arguments."""
        return []

    def read(self, ops: Sequence[Op], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
        """Read a triple for each operation."""
        now_ms = ceil_ms(reply[0])
        found = zip(ops, triples(reply), strict=True)
        return [self._one(op, code, record, ttl_ms, now_ms) for op, (code, record, ttl_ms) in found]

    def _one(self, op: Op, code: int, record: bytes, ttl_ms: int, now_ms: int) -> Reply:
        return answer_of(op, code) if code != Code.OK else read_record(record, now_ms, ttl_ms)


class ForgetScript:
    """`forget.lua`."""

    def pack(self, ops: Sequence[Op]) -> Args:
        """Return no arguments."""
        return []

    def read(self, ops: Sequence[Op], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
        """Read a code for each operation."""
        return [answer_of(op, code) for op, code in zip(ops, reply[1:], strict=True)]


class AdoptScript:
    """`adopt.lua`."""

    def pack(self, ops: Sequence[AdoptOp]) -> Args:
        """Return four arguments for each operation; see the header of the script."""
        args: Args = []
        for op in ops:
            record = op.record
            base = b"" if op.base is None else holding_bytes(op.base.owner, op.base.fence)
            args += [max(record.ttl_ms, 1), record.left_ms, base, encode(record)]
        return args

    def read(self, ops: Sequence[AdoptOp], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
        """Read a pair for each operation."""
        now_ms = ceil_ms(reply[0])
        pairs = zip(reply[1::2], reply[2::2], strict=True)
        return [self._one(op, code, former, now_ms) for op, (code, former) in zip(ops, pairs, strict=True)]

    def _one(self, op: AdoptOp, code: int, former: bytes, now_ms: int) -> Reply:
        if code == Code.ELSEWHERE:
            return Code.ELSEWHERE
        if code == Code.REFUSED:
            return answer_of(op, code)
        if code in (_FOREIGN, _TOO_LARGE):
            return Adopted(Code.FOREIGN, b"", 0)  # reported in an event: no caller waits for this answer
        stored = read_record(former, now_ms)
        if not isinstance(stored, Stored):
            return Adopted(Code(code), b"", 0)
        return Adopted(Code(code), stored.owner, stored.fence, settled=stored.state in "SF")


def triples(reply: list[Any]) -> Iterable[tuple[Any, Any, Any]]:
    """Read a reply of the form {now, a, b, c, ...}."""
    return zip(reply[1::3], reply[2::3], reply[3::3], strict=True)


def face_of(verb: Verb) -> Script:
    """Return the Python side of a verb's script."""
    match verb:
        case Verb.CLAIM:
            return ClaimScript()
        case Verb.SETTLE:
            return SettleScript()
        case Verb.RELEASE:
            return ReleaseScript()
        case Verb.RENEW:
            return RenewScript()
        case Verb.ISSUE:
            return IssueScript()
        case Verb.TRANSITION:
            return TransitionScript()
        case Verb.READ:
            return ReadScript()
        case Verb.FORGET:
            return ForgetScript()
        case Verb.ADOPT:
            return AdoptScript()
        case Verb.LEDGER:
            return LedgerScript()
        case Verb.FIRST:
            return FirstScript()
        case Verb.SEEN:
            return SeenScript()
        case Verb.FORGET_ID:
            return ForgetIdScript()
        case Verb.WEIGH:
            return WeighScript()
        case Verb.CLAIM_REMEMBERED:
            return RememberedClaimScript()
        case Verb.SETTLE_REMEMBERED:
            return RememberedSettleScript()
        case _:
            assert_never(verb)


FACES: Final = {verb: face_of(verb) for verb in Verb}


@cache
def load_scripts() -> dict[Verb, LoadedScript]:
    """Read all scripts, once for the process."""
    return {
        verb: (TwoKeyScript if verb.row.keys is Keys.BESIDE else LoadedScript)(verb, face)
        for verb, face in FACES.items()
    }
