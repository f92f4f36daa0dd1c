"""The Lua scripts' Python face: one class a verb, which packs a batch and reads its reply.

Why scripts at all: a claim is a SET NX whose failure must be judged (same owner? lease over?
another fingerprint?) in the same atomic step, and a completion must compare before it writes.
Each script takes N keys as a batch of independent operations, so a thousand claims cost one
round trip. The SHA is computed once, here; a server that lost its scripts (restart, SCRIPT FLUSH)
answers NOSCRIPT before doing anything, and the batch is sent again with the text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol, cast

from ...errors import ConfigError
from ...model import Outcome
from ...protocol.operations import (
    Adopted,
    AdoptOp,
    ClaimOp,
    Code,
    IssueOp,
    Moved,
    Op,
    ReleaseOp,
    RenewOp,
    Reply,
    SettleOp,
    Terms,
    TransitionOp,
    Verb,
    Verdict,
    with_fingerprint,
)
from .records import decode, decode_machine, encode, verdict

Args = list[str | bytes | int]


@cache
def lua_source(name: str) -> str:
    """Return the text of `lua/<name>.lua`: in an installed package, else beside it in a checkout."""
    package = Path(__file__).parents[2]
    for folder in (package / "lua", package.parent / "lua"):
        path = folder / f"{name}.lua"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise ConfigError(
        f"fastdedup's {name}.lua is missing: the package is not installed whole, install it again"
    )


class Script(Protocol):
    """How one verb is packed and its reply read."""

    def pack(self, ops: Sequence[Any]) -> Args:
        """Return ARGV."""
        ...

    def read(self, ops: Sequence[Any], reply: list[Any]) -> Sequence[Reply]:
        """Return one reply per operation. `reply[0]` is the server's time in microseconds."""
        ...


class LoadedScript:
    """A script with its text and SHA."""

    __slots__ = ("pack", "read", "sha", "text")

    def __init__(self, verb: Verb, face: Script) -> None:
        self.text = lua_source("_record") + lua_source(verb.value)
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        self.pack = face.pack
        self.read = face.read


class ClaimScript:
    """`claim.lua`."""

    def pack(self, ops: Sequence[ClaimOp]) -> Args:
        """See the header of the script."""
        args: Args = []
        start = 0
        for terms, size in runs_of(ops):
            args.append(size)
            args += terms.header
            args += [op.tail for op in (ops if size == len(ops) else ops[start : start + size])]
            start += size
        return args

    def read(self, ops: Sequence[ClaimOp], reply: list[Any]) -> Sequence[Reply]:
        """Fresh claims share one Verdict per run: they differ in nothing but their owner."""
        now_us = cast(int, reply[0])
        verdicts: list[Reply] = []
        for terms, size in runs_of(ops):
            fresh = Verdict(Outcome.ACQUIRED, fence=now_us, attempt=1, left_ms=terms.lease_ms)
            verdicts += [fresh] * size
        now_ms = now_us // 1000
        for at in range(1, len(reply), 3):
            verdicts[reply[at] - 1] = verdict(reply[at + 1], reply[at + 2], now_ms)
        return verdicts


class SettleScript:
    """`settle.lua`."""

    def pack(self, ops: Sequence[SettleOp]) -> Args:
        """See the header of the script."""
        args: Args = []
        for (succeeded, keep_ms), run in groupby(ops, attrgetter("succeeded", "keep_ms")):
            stretch = list(run)
            args += [len(stretch), "S" if succeeded else "F", keep_ms]
            for op in stretch:
                args.append(proof(op))
                args.append(op.payload)
        return args

    def read(self, ops: Sequence[SettleOp], reply: list[Any]) -> Sequence[Reply]:
        """All OK but those named."""
        return codes(ops, reply)


class ReleaseScript:
    """`release.lua`."""

    def pack(self, ops: Sequence[ReleaseOp]) -> Args:
        """See the header of the script."""
        return [proof(op) for op in ops]

    def read(self, ops: Sequence[ReleaseOp], reply: list[Any]) -> Sequence[Reply]:
        """All OK but those named."""
        return codes(ops, reply)


class RenewScript:
    """`renew.lua`."""

    def pack(self, ops: Sequence[RenewOp]) -> Args:
        """See the header of the script."""
        args: Args = []
        for (lease_ms, keep_ms), run in groupby(ops, attrgetter("lease_ms", "keep_ms")):
            proofs = [proof(op) for op in run]
            args += [len(proofs), lease_ms, keep_ms, *proofs]
        return args

    def read(self, ops: Sequence[RenewOp], reply: list[Any]) -> Sequence[Reply]:
        """All OK but those named."""
        return codes(ops, reply)


class IssueScript:
    """`issue.lua`."""

    def pack(self, ops: Sequence[IssueOp]) -> Args:
        """See the header of the script."""
        args: Args = []
        for ttl_ms, run in groupby(ops, attrgetter("ttl_ms")):
            tails = [token_tail(op) for op in run]
            args += [len(tails), ttl_ms, *tails]
        return args

    def read(self, ops: Sequence[IssueOp], reply: list[Any]) -> Sequence[Reply]:
        """All OK but those named."""
        return codes(ops, reply)


class TransitionScript:
    """`transition.lua`."""

    def pack(self, ops: Sequence[TransitionOp]) -> Args:
        """See the header of the script."""
        args: Args = []
        for op in ops:
            sources = "\n" + "".join(f"{state}\n" for state in sorted(op.sources))
            version = "" if op.version is None else op.version
            args += [op.keep_ms, op.change, version, op.to, op.initial, sources, "1" if op.unsure else ""]
        return args

    def read(self, ops: Sequence[TransitionOp], reply: list[Any]) -> Sequence[Reply]:
        """A triple for each."""
        return [Moved(Code(code), state.decode(), version) for code, version, state in triples(reply)]


class ReadScript:
    """`read.lua`."""

    def pack(self, ops: Sequence[Op]) -> Args:
        """No arguments."""
        return []

    def read(self, ops: Sequence[Op], reply: list[Any]) -> Sequence[Reply]:
        """A triple for each."""
        now_ms = reply[0] // 1000
        return [self._one(code, record, ttl_ms, now_ms) for code, record, ttl_ms in triples(reply)]

    def _one(self, code: int, record: bytes, ttl_ms: int, now_ms: int) -> Reply:
        if code != Code.OK:
            return Code(code)
        return decode_machine(record, ttl_ms) if record[1:2] == b"M" else decode(record, now_ms, ttl_ms)


class ForgetScript:
    """`forget.lua`."""

    def pack(self, ops: Sequence[Op]) -> Args:
        """No arguments."""
        return []

    def read(self, ops: Sequence[Op], reply: list[Any]) -> Sequence[Reply]:
        """A code for each."""
        return [Code(code) for code in reply[1:]]


class AdoptScript:
    """`adopt.lua`."""

    def pack(self, ops: Sequence[AdoptOp]) -> Args:
        """Four arguments for each."""
        args: Args = []
        for op in ops:
            record = op.record
            base = b"" if op.base is None else op.base.fence.to_bytes(7, "big") + op.base.owner
            args += [max(record.ttl_ms, 1), record.left_ms, base, encode(record)]
        return args

    def read(self, ops: Sequence[AdoptOp], reply: list[Any]) -> Sequence[Reply]:
        """A pair for each."""
        now_ms = reply[0] // 1000
        pairs = zip(reply[1::2], reply[2::2], strict=True)
        return [self._one(code, former, now_ms) for code, former in pairs]

    def _one(self, code: int, former: bytes, now_ms: int) -> Reply:
        if not former:
            return Adopted(Code(code), b"", 0)
        stored = decode_machine(former, 0) if former[1:2] == b"M" else decode(former, now_ms)
        return Adopted(Code(code), stored.owner, stored.fence, settled=stored.state in "SF")


def proof(op: SettleOp | ReleaseOp | RenewOp) -> bytes:
    """What an owner shows: the fence (0 for any) and the owner field."""
    return op.fence.to_bytes(7, "big") + op.owner


def token_tail(op: IssueOp) -> bytes:
    """Shape, issuer and subject, with the mark of a token."""
    tail = op.issuer if op.fingerprint is None else with_fingerprint(op.issuer, op.fingerprint)
    return bytes((tail[0] | 64,)) + tail[1:]


def runs_of(ops: Sequence[ClaimOp]) -> Sequence[tuple[Terms, int]]:
    """Return the terms and the length of each stretch of claims with equal terms."""
    # Nearly always one. `count` compares by identity first: no Python code per operation.
    terms = ops[0].terms
    if len(ops) == 1:
        return ((terms, 1),)
    if [op.terms for op in ops].count(terms) == len(ops):
        return ((terms, len(ops)),)
    return [(terms, sum(1 for _ in run)) for terms, run in groupby(ops, attrgetter("terms"))]


def codes(ops: Sequence[Op], reply: list[Any]) -> list[Reply]:
    """Read a reply of the form {now, i, code, ...}."""
    answers: list[Reply] = [Code.OK] * len(ops)
    for at in range(1, len(reply), 2):
        answers[reply[at] - 1] = Code(reply[at + 1])
    return answers


def triples(reply: list[Any]) -> Iterable[tuple[Any, Any, Any]]:
    """Read a reply of the form {now, a, b, c, ...}."""
    return zip(reply[1::3], reply[2::3], reply[3::3], strict=True)


FACES: dict[Verb, Script] = {
    Verb.CLAIM: ClaimScript(),
    Verb.SETTLE: SettleScript(),
    Verb.RELEASE: ReleaseScript(),
    Verb.RENEW: RenewScript(),
    Verb.ISSUE: IssueScript(),
    Verb.TRANSITION: TransitionScript(),
    Verb.READ: ReadScript(),
    Verb.FORGET: ForgetScript(),
    Verb.ADOPT: AdoptScript(),
}


@cache
def load_scripts() -> dict[Verb, LoadedScript]:
    """Read all scripts, once a process."""
    return {verb: LoadedScript(verb, face) for verb, face in FACES.items()}
