"""The Python side of the scripts: what reads their replies, and the table of all. `arguments.py` packs the calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import groupby
from typing import Any, Final, assert_never

from ...kernel.codes import Code
from ...kernel.operations import AdoptOp, Op, Reply, SettleOp, TransitionOp
from ...kernel.records import Stored, is_state, read_record
from ...kernel.replies import Adopted, StoredForm, TransitionReply, Weight
from ...kernel.verbs import Effect, Verb
from ...ledger.operations import FirstOp
from .arguments import ARGUMENTS
from .ledger_arguments import ALSO
from .scripts import (
    ONLY_CODES,
    Args,
    Call,
    Face,
    LoadedScript,
    answer_of,
    both_keys,
    call_claims,
    ceil_ms,
    read_claims,
    read_pairs,
)

_FOREIGN, _TOO_LARGE = Code.FOREIGN.value, Code.TOO_LARGE.value


def read_codes(ops: Sequence[Op], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
    """Read a code for each operation."""
    return [answer_of(op, code) for op, code in zip(ops, reply[1:], strict=True)]


def read_transitions(ops: Sequence[TransitionOp], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
    """Read a triple for each operation."""
    moves = zip(ops, triples(reply), strict=True)
    return [_transition(op, code, version, state) for op, (code, version, state) in moves]


def _transition(op: TransitionOp, code: int, version: int, state: bytes) -> Reply:
    if code in ONLY_CODES:
        return answer_of(op, code)
    if code == _FOREIGN or not is_state(state):
        return TransitionReply(Code.FOREIGN, "", 0)
    return TransitionReply(Code(code), state.decode(), version)


def read_records(ops: Sequence[Op], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
    """Read a triple for each operation."""
    now_ms = ceil_ms(reply[0])
    return [
        answer_of(op, code) if code != Code.OK else read_record(record, now_ms, ttl_ms)
        for op, (code, record, ttl_ms) in zip(ops, triples(reply), strict=True)
    ]


def read_adoptions(ops: Sequence[AdoptOp], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
    """Read a pair for each operation."""
    now_ms = ceil_ms(reply[0])
    pairs = zip(reply[1::2], reply[2::2], strict=True)
    return [_adoption(op, code, former, now_ms) for op, (code, former) in zip(ops, pairs, strict=True)]


def _adoption(op: AdoptOp, code: int, former: bytes, now_ms: int) -> Reply:
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


# The replies of the ledgers' scripts

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


def triples(reply: list[Any]) -> Iterable[tuple[Any, Any, Any]]:
    """Read a reply of the form {now, a, b, c, ...}."""
    return zip(reply[1::3], reply[2::3], reply[3::3], strict=True)


def call_settle(ops: Sequence[SettleOp]) -> Call:
    """See the header of `settle.lua`."""
    settle = ARGUMENTS[Verb.SETTLE]
    if [op.also for op in ops].count(None) == len(ops):
        return [op.wire for op in ops], settle.pack(ops)
    keys: list[bytes] = []
    args: Args = []
    for plain, each in groupby(ops, lambda op: op.also is None):
        run = list(each)
        keys += [op.wire for op in run] if plain else both_keys(run)
        args += (settle if plain else ALSO).pack(run)
    return keys, args


READERS: Final[dict[Verb, Callable[..., Sequence[Reply]]]] = {
    Verb.ADOPT: read_adoptions,
    Verb.TRANSITION: read_transitions,
    Verb.READ: read_records,
    Verb.FIRST: read_first,
    Verb.SEEN: read_codes,
    Verb.LEDGER: read_ledgers,
    Verb.WEIGH: read_weights,
}
"""What reads the replies that say more than whether it was done."""


def reader_of(verb: Verb) -> Callable[..., Sequence[Reply]]:
    """Return what reads the reply of a verb's script."""
    match verb.row.effect:
        case Effect.FREES | Effect.EXTENDS | Effect.MAKES:
            return read_pairs
        case Effect.REMOVES:
            return read_codes
        case Effect.CLAIMS | Effect.DECIDES | Effect.BRINGS | Effect.READS:
            return READERS[verb]
        case _:
            assert_never(verb.row.effect)


def face_of(verb: Verb) -> Face:
    """Return the Python side of a verb's script. That of claims is compiled: most operations are such."""
    if verb is Verb.CLAIM:
        return Face(call_claims, read_claims)
    if verb is Verb.SETTLE:
        return Face(call_settle, read_pairs)
    pack = ARGUMENTS[verb].pack
    return Face(lambda ops: ([op.wire for op in ops], pack(ops)), reader_of(verb))


FACES: Final = {verb: face_of(verb) for verb in Verb}


@cache
def load_scripts() -> dict[Verb, LoadedScript]:
    """Read all scripts, once for the process."""
    return {verb: LoadedScript(verb, face) for verb, face in FACES.items()}


def all_scripts() -> dict[LoadedScript, Verb]:
    """Return the scripts of all verbs; those that a ledger may take part in have two."""
    loaded = load_scripts().items()
    return {each: verb for verb, script in loaded for each in (script, script.with_ledger)}
