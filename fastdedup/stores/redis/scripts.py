"""The Python side of the Lua scripts: packs a batch into one command and reads its reply. See also `verbs.py`.

Scripts are needed because a claim is a SET NX whose failure must be judged in the same atomic step (same owner? lease
over? another fingerprint?), and because a completion must compare before it writes. Each script takes N keys as a
batch of independent operations, so a thousand claims cost one round trip. The SHA is computed once, here. A server
that lost its scripts (restart, SCRIPT FLUSH) answers NOSCRIPT before it changes anything; then the batch is sent
again with the script's text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final, Protocol, cast

from ...errors import ConfigError, too_large
from ...kernel.answers import verdict
from ...kernel.codes import Code
from ...kernel.keyspace import names_of
from ...kernel.operations import ClaimOp, Op, RefusedAlone, Reply, Verdict
from ...kernel.records import MAX_FENCE, RECORD_HEAD, fence_bytes
from ...kernel.terms import Terms
from ...kernel.verbs import Keys, Verb
from ...model import Outcome
from .errors import FORBIDDEN

Args = list[str | bytes | int]
MAX_RECORD: Final = 256 * 1024 + RECORD_HEAD
"""Bytes of the largest record by default: a result of 256 KiB and the bytes before it."""
_ACQUIRED: Final = Outcome.ACQUIRED  # naming an enum's member through its class costs 50 ns on Python 3.11
_TOO_LARGE: Final = Code.TOO_LARGE.value
_REFUSED: Final = Code.REFUSED.value
ONLY_CODES: Final = (_TOO_LARGE, Code.ELSEWHERE.value, _REFUSED, Code.AGAIN.value)
"""Answers of any script that come without a record."""
_FAR_US: Final = 86_400_000_000
"""Microseconds by which a fence may be ahead of its server's clock: no real time is further ahead."""

_RECORD_HERE: Final = "-- Here stands _record.lua.\n"
"""The line of a script at which `_record.lua` stands; where there is none, it stands before the script's own text."""
_HERE: Final = re.compile(r"^ *-- Here stands (_\w+)\.lua\.\n", re.MULTILINE)
"""The line of a script at which a shared text stands."""

_SIZES: Final = [b"\r\n$%d\r\n" % size for size in range(1024)]
"""The bytes between two arguments, by the size of the second argument."""


@cache
def lua_source(name: str) -> str:
    """Return the text of `lua/<name>.lua`: from inside the package, or from beside it in a checkout."""
    package = Path(__file__).parents[2]
    for folder in (package / "lua", package.parent / "lua"):
        path = folder / f"{name}.lua"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise ConfigError(
        f"fastdedup's {name}.lua is missing: the package is only partly installed, install it again"
    )


def script_text(own: str) -> str:
    """Return a whole script: what every call begins with, the functions for records, and the script's own text."""
    text, missing = own, _HERE.search(own)
    while missing is not None:
        line, name = missing[0].lstrip(), missing[1]
        # Where two texts name the same one, it stands at the first place.
        text = text.replace(line, lua_source(name), 1).replace(line, "")
        missing = _HERE.search(text)
    if lua_source("_record") not in text:
        text = lua_source("_record") + text
    return lua_source("_batch") + text


class CallHead:
    """The two numbers that every script call of a store sends; shared by all servers of the store."""

    __slots__ = ("_ahead_us", "_most_ahead_us", "latest_us", "max_record")

    def __init__(self) -> None:
        self._ahead_us = 0
        self._most_ahead_us = 0
        self.latest_us = 0
        """The latest time of any server, in microseconds since 1970: the floor of the next fresh fence."""
        self.max_record = MAX_RECORD
        """The limit in bytes: a key with a larger value gets ForeignRecordError."""

    @property
    def time_us(self) -> int:
        """The servers' time: the one that was told last, and what has passed since. 0 where none was told."""
        return max(self.latest_us, monotonic_ns() // 1000 + self._ahead_us) if self._ahead_us else 0

    def heard(self, now_us: int) -> None:
        """Take in what a server's clock shows just now; 0 where it did not say."""
        if not 0 < now_us < MAX_FENCE:
            return
        self._ahead_us = now_us - monotonic_ns() // 1000
        self._most_ahead_us = max(self._most_ahead_us, self._ahead_us)
        if self.latest_us < now_us:
            self.latest_us = now_us

    def catch_up(self) -> None:
        """Raise the floor to what the fastest clock of all servers shows by now.

        A key may move from that clock's server to a slower one. Its last fence is then another client's, which this
        client has not seen, so the floor must follow the clock and not only the replies.
        """
        now_us = monotonic_ns() // 1000 + self._most_ahead_us
        if self._most_ahead_us and self.latest_us < now_us:
            self.latest_us = now_us

    def next_floor(self) -> int:
        """Return the floor of the next call. Each call gets another floor, because no two may give the same fence."""
        floor_us = self.latest_us
        self.latest_us = floor_us + 1
        return floor_us

    def saw(self, reply: list[Any], answers: Sequence[Reply]) -> None:
        """Raise the floor to the times in a script's reply. A record raises it to one day past the clock at most."""
        now_us = cast(int, reply[0])
        if self.latest_us < now_us < MAX_FENCE:
            self.latest_us = now_us
        if len(reply) == 1 and self._ahead_us:
            return  # fresh claims: their fences are the floor's, or the clock's; nothing more, as they are the most
        self.heard(now_us)
        for answer in answers:
            if type(answer) is Verdict and self.latest_us < answer.fence <= now_us + _FAR_US:
                self.latest_us = answer.fence


def pack(*command: str | bytes | int) -> bytes:
    """Return one command, packed."""
    return pack_parts(command)


def pack_parts(command: Sequence[object], head: bytes = b"", heads: int = 0) -> bytes:
    """Return one command of many arguments, packed. `head`: its first `heads` arguments, already packed.

    Raises:
        TypeError: an argument is not text, bytes or a whole number.
    """
    out = [b"*%d" % (heads + len(command)), head]
    for part in command:
        if isinstance(part, bytes):
            data = part
        elif isinstance(part, str):
            data = part.encode()
        elif isinstance(part, int):
            data = b"%d" % part
        else:
            raise TypeError(f"an argument must be text, bytes or a whole number, got {part!r}")
        size = len(data)
        out.append(_SIZES[size] if size < 1024 else b"\r\n$%d\r\n" % size)
        out.append(data)
    out.append(b"\r\n")
    return b"".join(out)


class Script(Protocol):
    """Packs the operations of one verb and reads their reply."""

    def pack(self, ops: Sequence[Any]) -> Args:
        """Return ARGV, without the floor and the limit that every script takes first."""
        ...

    def read(self, ops: Sequence[Any], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
        """Return one reply per operation. `reply[0]` is the server's time in microseconds.

        `floor_us`: the floor that the call sent.
        """
        ...


class LoadedScript:
    """A script with its text and SHA."""

    __slots__ = ("_head", "pack", "read", "sha", "text")

    def __init__(self, verb: Verb, face: Script) -> None:
        ledger = lua_source("_ledger") if verb.row.keys is Keys.BUCKET else ""
        self.text = script_text(ledger + lua_source(verb.value))
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
        parts.append(fence_bytes(floor_us))
        parts.append(limit)
        parts += self.pack(ops)
        return pack_parts(parts, self._head, 2)

    def command_undeclared(self, ops: Sequence[Op], floor_us: int, limit: int) -> bytes:
        """Return the same call with the keys behind all other arguments: for keys of many slots of one node."""
        parts: Args = [0, fence_bytes(floor_us), limit]
        parts += self.pack(ops)
        parts += [op.wire for op in ops]
        parts.append(len(ops))
        return pack_parts(parts, self._head, 2)

    def command_with_text(self, ops: Sequence[Op], floor_us: int, limit: int) -> bytes:
        """Return the same call with the script's text, for a server that has lost the script."""
        wires = [op.wire for op in ops]
        return pack_parts(
            ["EVAL", self.text, len(ops), *wires, fence_bytes(floor_us), limit, *self.pack(ops)]
        )

    def undeclared_with_text(self, ops: Sequence[Op], floor_us: int, limit: int) -> bytes:
        """Return the call of `command_undeclared` with the script's text."""
        wires = [op.wire for op in ops]
        numbers = (fence_bytes(floor_us), limit)
        return pack_parts(["EVAL", self.text, 0, *numbers, *self.pack(ops), *wires, len(wires)])


class TwoKeyScript(LoadedScript):
    """A script that takes two keys for each operation: its record's, and its bucket's."""

    def command(self, ops: Sequence[Op], floor_us: int, limit: int) -> bytes:
        """Return as `LoadedScript.command`."""
        wires = both_keys(ops)
        parts: Args = [len(wires), *wires, fence_bytes(floor_us), limit, *self.pack(ops)]
        return pack_parts(parts, self._head, 2)

    def command_undeclared(self, ops: Sequence[Op], floor_us: int, limit: int) -> bytes:
        """Return as `LoadedScript.command_undeclared`."""
        wires = both_keys(ops)
        parts: Args = [0, fence_bytes(floor_us), limit, *self.pack(ops), *wires, len(wires)]
        return pack_parts(parts, self._head, 2)

    def command_with_text(self, ops: Sequence[Op], floor_us: int, limit: int) -> bytes:
        """Return as `LoadedScript.command_with_text`."""
        wires = both_keys(ops)
        floor = fence_bytes(floor_us)
        return pack_parts(["EVAL", self.text, len(wires), *wires, floor, limit, *self.pack(ops)])

    def undeclared_with_text(self, ops: Sequence[Op], floor_us: int, limit: int) -> bytes:
        """Return as `LoadedScript.undeclared_with_text`."""
        wires = both_keys(ops)
        floor = fence_bytes(floor_us)
        return pack_parts(["EVAL", self.text, 0, floor, limit, *self.pack(ops), *wires, len(wires)])


def both_keys(ops: Sequence[Any]) -> list[bytes]:
    """Return each operation's record's key and its bucket's key."""
    return [wire for op in ops for wire in (op.wire, op.bucket)]


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
        """Return a Verdict for each claim. The fresh claims of a run share one: only their owners differ."""
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
        return answer_of(op, code) if code in ONLY_CODES else verdict(code, record, now_ms)


def runs_of(ops: Sequence[ClaimOp]) -> Sequence[tuple[Terms, int]]:
    """Return the terms and the length of each stretch of claims with equal terms."""
    # Nearly always a single stretch. `count` compares by identity first, so it runs no Python code per operation.
    terms = ops[0].terms
    if len(ops) == 1:
        return ((terms, 1),)
    if [op.terms for op in ops].count(terms) == len(ops):
        return ((terms, len(ops)),)
    return [(terms, sum(1 for _ in run)) for terms, run in groupby(ops, attrgetter("terms"))]


def ceil_ms(now_us: int) -> int:
    """Return a server's time in whole milliseconds, rounded up, because leases start there."""
    return -(-now_us // 1000)


def answer_of(op: Op, code: int) -> Reply:
    """Return a script's code as the reply to the operation; TOO_LARGE and REFUSED become errors."""
    if code == _REFUSED:
        return RefusedAlone(FORBIDDEN)
    return too_large(key_of(op)) if code == _TOO_LARGE else Code(code)


def codes(ops: Sequence[Op], reply: list[Any]) -> list[Reply]:
    """Read a reply of the form {now, i, code, ...}."""
    answers: list[Reply] = [Code.OK] * len(ops)
    for at in range(1, len(reply), 2):
        place = reply[at] - 1
        answers[place] = answer_of(ops[place], reply[at + 1])
    return answers


def key_of(op: Op) -> str:
    """Return the key as its caller wrote it, or, for any operation but a claim, as the store key has it."""
    return getattr(op, "key", "") or names_of(op.wire)[1]
