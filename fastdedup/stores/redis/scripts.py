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

from ...errors import ConfigError, too_large
from ...model import Outcome
from ...protocol.keyspace import names_of
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
    Stored,
    Terms,
    TransitionOp,
    Verb,
    Verdict,
    with_fingerprint,
)
from ..base import RECORD_HEAD
from .packing import pack_parts
from .records import MAX_FENCE, encode, is_state, read_record, verdict

Args = list[str | bytes | int]
MAX_RECORD = 256 * 1024 + RECORD_HEAD
"""Bytes of the largest record by default: a result of 256 KiB, and what stands before it."""
_ACQUIRED = Outcome.ACQUIRED  # naming an enum's member through its class costs 50 ns on Python 3.11
_FOREIGN, _TOO_LARGE = Code.FOREIGN.value, Code.TOO_LARGE.value
_FAR_US = 86_400_000_000
"""A fence that is further ahead of its server's clock than a day is not a time that somebody has seen."""


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


class CallHead:
    """What every script call of a store carries, whichever of its servers and connections it goes to."""

    __slots__ = ("latest_us", "max_record")

    def __init__(self) -> None:
        self.latest_us = 0
        """The latest time that a server has told, in microseconds since 1970: the floor of the next fresh fence."""
        self.max_record = MAX_RECORD
        """Bytes; a larger value in a key is an error of that key's."""

    def next_floor(self) -> int:
        """Return the floor of the next call; no two share one, as no two may give the same fence."""
        floor_us = self.latest_us
        self.latest_us = floor_us + 1
        return floor_us

    def saw(self, reply: list[Any], answers: Sequence[Reply]) -> None:
        """Take in a script's reply. No record raises the floor beyond the server's clock by more than a day."""
        now_us = cast(int, reply[0])
        if self.latest_us < now_us < MAX_FENCE:
            self.latest_us = now_us
        if len(reply) == 1:
            return  # fresh claims: their fences are the floor's, or the clock's
        for answer in answers:
            if type(answer) is Verdict and self.latest_us < answer.fence <= now_us + _FAR_US:
                self.latest_us = answer.fence


class Script(Protocol):
    """How one verb is packed and its reply read."""

    def pack(self, ops: Sequence[Any]) -> Args:
        """Return ARGV, without the floor and the limit that every script takes first."""
        ...

    def read(self, ops: Sequence[Any], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
        """Return one reply per operation. `reply[0]` is the server's time in microseconds.

        `floor_us`: what the call carried.
        """
        ...


class LoadedScript:
    """A script with its text and SHA."""

    __slots__ = ("_head", "pack", "read", "sha", "text")

    def __init__(self, verb: Verb, face: Script) -> None:
        self.text = lua_source("_record") + lua_source(verb.value)
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        self._head = pack_parts(["EVALSHA", self.sha])[2:-2]
        self.pack = face.pack
        self.read = face.read

    def command(self, ops: Sequence[Op], floor_us: int, limit: int) -> bytes:
        """Return the call of the script for these operations."""
        parts: Args = [len(ops)]
        if len(ops) == 1:
            parts.append(ops[0].wire)
        else:
            parts += [op.wire for op in ops]
        parts.append(floor_us.to_bytes(7, "big"))
        parts.append(limit)
        parts += self.pack(ops)
        return pack_parts(parts, self._head, 2)

    def command_with_text(self, ops: Sequence[Op], floor_us: int, limit: int) -> bytes:
        """Return the same for a server that has lost the script."""
        wires = [op.wire for op in ops]
        return pack_parts(
            ["EVAL", self.text, len(ops), *wires, floor_us.to_bytes(7, "big"), limit, *self.pack(ops)]
        )


class ClaimScript:
    """`claim.lua`."""

    def pack(self, ops: Sequence[ClaimOp]) -> Args:
        """See the header of the script."""
        if len(ops) == 1:
            return [1, *ops[0].terms.header, ops[0].tail]
        args: Args = []
        start = 0
        for terms, size in runs_of(ops):
            args.append(size)
            args += terms.header
            args += [op.tail for op in (ops if size == len(ops) else ops[start : start + size])]
            start += size
        return args

    def read(self, ops: Sequence[ClaimOp], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
        """Fresh claims share one Verdict per run: they differ in nothing but their owner."""
        now_us = cast(int, reply[0])
        fence = now_us if now_us > floor_us else floor_us + 1
        if len(ops) == len(reply) == 1:
            return [Verdict(_ACQUIRED, fence=fence, attempt=1, left_ms=ops[0].terms.lease_ms)]
        verdicts: list[Reply] = []
        for terms, size in runs_of(ops):
            fresh = Verdict(_ACQUIRED, fence=fence, attempt=1, left_ms=terms.lease_ms)
            verdicts += [fresh] * size
        now_ms = ceil_ms(now_us)
        for at in range(1, len(reply), 3):
            place = reply[at] - 1
            verdicts[place] = self._met(ops[place], reply[at + 1], reply[at + 2], now_ms)
        return verdicts

    def _met(self, op: ClaimOp, code: int, record: bytes, now_ms: int) -> Reply:
        return too_large(key_of(op)) if code == _TOO_LARGE else verdict(code, record, now_ms)


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

    def read(self, ops: Sequence[SettleOp], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
        """All OK but those named."""
        return codes(ops, reply)


class ReleaseScript:
    """`release.lua`."""

    def pack(self, ops: Sequence[ReleaseOp]) -> Args:
        """See the header of the script."""
        args: Args = []
        for consumed, run in groupby(ops, attrgetter("consumed")):
            proofs = [proof(op) for op in run]
            args += [len(proofs), int(consumed), *proofs]
        return args

    def read(self, ops: Sequence[ReleaseOp], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
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

    def read(self, ops: Sequence[RenewOp], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
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

    def read(self, ops: Sequence[IssueOp], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
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

    def read(self, ops: Sequence[TransitionOp], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
        """A triple for each."""
        moves = zip(ops, triples(reply), strict=True)
        return [self._one(op, code, version, state) for op, (code, version, state) in moves]

    def _one(self, op: TransitionOp, code: int, version: int, state: bytes) -> Reply:
        if code == _TOO_LARGE:
            return too_large(key_of(op))
        if code == _FOREIGN or not is_state(state):
            return Moved(Code.FOREIGN, "", 0)
        return Moved(Code(code), state.decode(), version)


class ReadScript:
    """`read.lua`."""

    def pack(self, ops: Sequence[Op]) -> Args:
        """No arguments."""
        return []

    def read(self, ops: Sequence[Op], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
        """A triple for each."""
        now_ms = ceil_ms(reply[0])
        found = zip(ops, triples(reply), strict=True)
        return [self._one(op, code, record, ttl_ms, now_ms) for op, (code, record, ttl_ms) in found]

    def _one(self, op: Op, code: int, record: bytes, ttl_ms: int, now_ms: int) -> Reply:
        return answer_of(op, code) if code != Code.OK else read_record(record, now_ms, ttl_ms)


class ForgetScript:
    """`forget.lua`."""

    def pack(self, ops: Sequence[Op]) -> Args:
        """No arguments."""
        return []

    def read(self, ops: Sequence[Op], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
        """A code for each."""
        return [answer_of(op, code) for op, code in zip(ops, reply[1:], strict=True)]


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

    def read(self, ops: Sequence[AdoptOp], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
        """A pair for each."""
        now_ms = ceil_ms(reply[0])
        pairs = zip(reply[1::2], reply[2::2], strict=True)
        return [self._one(code, former, now_ms) for code, former in pairs]

    def _one(self, code: int, former: bytes, now_ms: int) -> Reply:
        if code in (_FOREIGN, _TOO_LARGE):
            return Adopted(Code.FOREIGN, b"", 0)  # told in an event: nobody waits for this answer
        stored = read_record(former, now_ms)
        if not isinstance(stored, Stored):
            return Adopted(Code(code), b"", 0)
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


def ceil_ms(now_us: int) -> int:
    """Return a server's time in whole milliseconds: rounded up, as leases are counted from there."""
    return -(-now_us // 1000)


def codes(ops: Sequence[Op], reply: list[Any]) -> list[Reply]:
    """Read a reply of the form {now, i, code, ...}."""
    answers: list[Reply] = [Code.OK] * len(ops)
    for at in range(1, len(reply), 2):
        place = reply[at] - 1
        answers[place] = answer_of(ops[place], reply[at + 1])
    return answers


def answer_of(op: Op, code: int) -> Reply:
    """Return what a script's code says to the one who asked."""
    return too_large(key_of(op)) if code == _TOO_LARGE else Code(code)


def key_of(op: Op) -> str:
    """Return the key as its caller calls it; of any other operation than a claim, as the store key tells it."""
    return getattr(op, "key", "") or names_of(op.wire)[1]


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
