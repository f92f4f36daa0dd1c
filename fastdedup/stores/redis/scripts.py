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
from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final, NamedTuple, cast

from ...errors import ConfigError, too_large
from ...kernel.answers import verdict
from ...kernel.codes import Code
from ...kernel.id_place import IdPlace
from ...kernel.keyspace import names_of
from ...kernel.operations import ClaimOp, Op, Reply, Verdict
from ...kernel.records import MAX_FENCE, RECORD_HEAD, fence_bytes
from ...kernel.replies import RefusedAlone
from ...kernel.terms import Terms
from ...kernel.verbs import IdUse, Keys, Verb
from ...ledger.forms import DENSE_WIDTH
from ...ledger.ids import nonces_beside
from ...ledger.operations import IdOp
from ...model import Outcome
from .errors import FORBIDDEN
from .ledger_arguments import UNLESS

Args = list[str | bytes | int]
Call = tuple[list[bytes], Args]
"""The keys of a script's call, and its own arguments."""
MAX_RECORD: Final = 256 * 1024 + RECORD_HEAD
"""Bytes of the largest record by default: a result of 256 KiB and the bytes before it."""
_ACQUIRED: Final = Outcome.ACQUIRED  # naming an enum's member through its class costs 50 ns on Python 3.11
_TOO_LARGE: Final = Code.TOO_LARGE.value
_REFUSED: Final = Code.REFUSED.value
_UNKNOWN: Final = Code.UNKNOWN.value
_STALE: Final = Code.STALE.value
ONLY_CODES: Final = (_TOO_LARGE, Code.ELSEWHERE.value, _REFUSED, Code.AGAIN.value)
"""Answers of any script that come without a record."""
_FAR_US: Final = 86_400_000_000
"""Microseconds by which a fence may be ahead of its server's clock: no real time is further ahead."""

_HERE: Final = re.compile(r"^ *-- Here stands (_\w+)\.lua\.\n", re.MULTILINE)
"""The line of a script that a shared text replaces."""

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


_OF_LEDGERS: Final = ("_unless", "_also")
"""The shared texts for operations with a ledger. Other calls have a text without them: a server's garbage collector
visits all that a script could do, which costs a claim 1 %."""


def script_text(own: str, *, with_ledger: bool = True) -> str:
    """Return a whole script: the beginning of every call, the functions for records, and the script's own text."""
    text, missing = own, _HERE.search(own)
    while missing is not None:
        line, name = missing[0].lstrip(), missing[1]
        # If two texts name the same shared text, it stands at the first place.
        source = lua_source(name) if with_ledger or name not in _OF_LEDGERS else ""
        text = text.replace(line, source, 1).replace(line, "")
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
        """The servers' time: the last one that a server gave, plus the time since then. 0 if no server gave one."""
        return max(self.latest_us, monotonic_ns() // 1000 + self._ahead_us) if self._ahead_us else 0

    def heard(self, now_us: int) -> None:
        """Take the time that a server's clock shows now; 0 if the server did not give it."""
        if not 0 < now_us < MAX_FENCE:
            return
        self._ahead_us = now_us - monotonic_ns() // 1000
        self._most_ahead_us = max(self._most_ahead_us, self._ahead_us)
        if self.latest_us < now_us:
            self.latest_us = now_us

    def catch_up(self) -> None:
        """Raise the floor to the time that the fastest clock of all servers shows now.

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
            return  # fresh claims, the usual ones: their fences come from the floor or the clock, so stop here
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


class Face(NamedTuple):
    """The Python side of a verb's script.

    Attributes:
        call: returns the keys of some operations, and ARGV without the floor and the limit that every script takes
            first.
        read: returns a reply for each operation, from the operations, the script's reply, whose first item is the
            server's time in microseconds, and the floor that the call sent.
    """

    call: Callable[[Sequence[Any]], Call]
    read: Callable[..., Sequence[Reply]]


_TAKING_LEDGERS: Final = (Verb.CLAIM, Verb.SETTLE)


class LoadedScript:
    """A script with its text and SHA. `with_ledger`: the same script for calls in which a ledger takes part."""

    __slots__ = ("_names_calls", "call", "head", "read", "sha", "text", "with_ledger")

    def __init__(self, verb: Verb, face: Face, *, with_ledger: bool = False) -> None:
        ledger = lua_source("_ledger") if verb.row.keys is Keys.BUCKET else ""
        self.text = script_text(ledger + lua_source(verb.value), with_ledger=with_ledger)
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        self.head = pack_parts(["EVALSHA", self.sha])[2:-2]
        self.call = face.call
        self.read = face.read
        self._names_calls = verb.row.ids is not IdUse.NONE
        takes_one = verb in _TAKING_LEDGERS and not with_ledger
        self.with_ledger = LoadedScript(verb, face, with_ledger=True) if takes_one else self

    def command(
        self,
        ops: Sequence[Op],
        floor_us: int,
        limit: int,
        *,
        declared: bool = True,
        with_text: bool = False,
    ) -> bytes:
        """Return the call of the script for these operations.

        Args:
            ops: the operations.
            floor_us: see `CallHead.next_floor`.
            limit: see `CallHead.max_record`.
            declared: False for keys of many slots of one node: they stand behind all other arguments.
            with_text: for a server that has lost the script.
        """
        keys, args = self.call(ops)
        if declared and self._names_calls:
            keys += nonces_of(cast(Sequence[IdOp], ops))
        floor = fence_bytes(floor_us)
        own: Args = [floor, limit, *args]
        parts: Args = [len(keys), *keys, *own] if declared else [0, *own, *keys, len(keys)]
        script = self if len(keys) == len(ops) else self.with_ledger
        if with_text:
            return pack_parts(["EVAL", script.text, *parts])
        return pack_parts(parts, script.head, 2)


def both_keys(ops: Sequence[Op]) -> list[bytes]:
    """Return the keys of operations with a ledger: of each its record's and its bucket's."""
    return [key for op in ops for key in (op.wire, cast(IdPlace, op.remembering).bucket)]


def nonces_of(ops: Sequence[IdOp]) -> set[bytes]:
    """Return the keys of the nonces of dense ledgers that operations with a nonce touch, beside their own."""
    return {nonces_beside(op.wire) for op in ops if op.terms.width == DENSE_WIDTH < len(op.entry)}


def ops_of_keys(ops: Sequence[Op]) -> list[int]:
    """Return for each key the place of its operation: those with a ledger have two keys."""
    return [place for place, op in enumerate(ops) for _ in range(1 if op.remembering is None else 2)]


def call_claims(ops: Sequence[ClaimOp]) -> Call:
    """See the header of `claim.lua`."""
    if len(ops) == 1 and ops[0].unless is None:
        return [ops[0].wire], [1, *ops[0].terms.header, ops[0].tail]
    keys: list[bytes] = []
    args: Args = []
    start = 0
    for terms, size in runs_of(ops):
        run = ops if size == len(ops) else ops[start : start + size]
        start += size
        if terms.remembered:
            keys += both_keys(run)
            args += UNLESS.pack(run)
            continue
        keys += [op.wire for op in run]
        args.append(size)
        args += terms.header
        args += [op.tail for op in run]
    return keys, args


def read_claims(ops: Sequence[ClaimOp], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
    """Return a Verdict for each claim. The fresh claims of a run share one: only their owners differ."""
    now_us = cast(int, reply[0])
    fence = now_us if now_us > floor_us else floor_us + 1
    if len(ops) == len(reply) == 1:
        return [Verdict(_ACQUIRED, fence=fence, attempt=1, left_ms=ops[0].terms.lease_ms)]
    verdicts: list[Reply] = []
    runs = runs_of(ops)
    for terms, size in runs:
        fresh = Verdict(_ACQUIRED, fence=fence, attempt=1, left_ms=terms.lease_ms)
        verdicts += [fresh] * size
    now_ms = ceil_ms(now_us)
    places = ops_of_keys(ops) if any(terms.remembered for terms, _ in runs) else range(len(ops))
    for at in range(1, len(reply), 3):
        place = places[reply[at] - 1]
        verdicts[place] = _met(ops[place], reply[at + 1], reply[at + 2], now_ms)
    return verdicts


def _met(op: ClaimOp, code: int, record: bytes, now_ms: int) -> Reply:
    if code in ONLY_CODES:
        return answer_of(op, code)
    if op.unless is not None and code == _UNKNOWN:
        return Verdict(Outcome.SUCCEEDED)  # only the ledger knows of it
    return Code.STALE if code == _STALE else verdict(code, record, now_ms)


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


def read_pairs(ops: Sequence[Op], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
    """Read a reply of the form {now, i, code, ...}: OK for each operation that it does not name, else its code.

    A pair of completions that a ledger remembers may begin with 0: then it says how many entries their buckets have.
    """
    answers: list[Reply] = [Code.OK] * len(ops)
    if len(reply) == 1:
        return answers
    places = ops_of_keys(ops)
    for at in range(1, len(reply), 2):
        key, code = reply[at], reply[at + 1]
        if key:
            place = places[key - 1]
            answers[place] = answer_of(ops[place], code)
        elif code:
            noted: list[Any] = [op.remembering for op in ops if op.remembering is not None]
            noted[0].terms.saw_fill(code, len(noted))
    return answers


def key_of(op: Op) -> str:
    """Return the key that the caller wrote; for an operation other than a claim, the key in the store key."""
    return getattr(op, "key", "") or names_of(op.wire)[1]
