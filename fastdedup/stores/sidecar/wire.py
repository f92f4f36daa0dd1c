"""The protocol between a store and the sidecar: `FD.RUN`, a batch of operations of one verb.

    FD.RUN verb count key... args...

The arguments are those of the verb's script, which `stores/redis/arguments.py` packs and reads. The claims and the
completions in which a ledger takes part have names of their own, `claim_remembered` and `settle_remembered`; their
keys are the records' alone, which begin with the buckets'. The arguments of operations on ids are followed by the ids
themselves, one for each operation: the sidecar's policy needs them, because another form has other digests. If a
reason is given for forgetting a record or an id, `WHY` and a reason for each operation stand before the arguments.
`PATIENT` stands before the arguments of `first`. `answers.py` has the replies.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple, cast

from ...checks import MOST_REASON
from ...errors import ConfigError, UnavailableError
from ...kernel.operations import ClaimOp, Op, SettleOp
from ...kernel.verbs import UNREPEATED, IdUse, Keys, Verb
from ...ledger.ids import MAX_ID, NONCE_BYTES, without_patience
from ...ledger.operations import LedgerPlace, LedgerTerms
from ..redis.argument_types import Arguments
from ..redis.arguments import ARGUMENTS
from ..redis.ledger_arguments import CLAIM_REMEMBERED, SETTLE_REMEMBERED
from ..redis.scripts import pack

PROTOCOL = 2
"""The number that the client sends in `FD.STORE`; a sidecar of another protocol refuses it."""
MAX_OPERATIONS = 256
"""The operations that one FD.RUN may have."""
LONGEST_TURN: Final = 10.0
"""Seconds: a list waits so long for its turn, and then the sidecar says that others ask for lists too. A client adds
this to its own timeout; a sidecar has it for a default (`limits.request_timeout`)."""
_CROWDED: Final = "max number of clients reached"
WHY = b"why"
"""Stands before the reasons of operations; no script has an argument like it. Version 0.1.0 does not know it."""
PATIENT = b"patient"
"""Stands before the arguments of `first`: the client knows PENDING, and the last byte of a nonce is its patience."""


def outage_of(reply: str) -> UnavailableError | None:
    """Return the outage that a sidecar's error reply tells of; None if it tells of a mistake."""
    kind, _, why = reply.partition(" ")
    if kind == "UNAVAILABLE":
        ms, _, why = why.partition(" ")
        return UnavailableError(why, retry_after=int(ms) / 1000 if ms.isdigit() else 1.0)
    return UnavailableError(reply.removeprefix("ERR ")) if _CROWDED in reply else None


class RunKind(NamedTuple):
    """A kind of operations that one FD.RUN has: those of a verb, or those of a verb in which a ledger takes part.

    Attributes:
        name: its name on the wire.
        verb: the verb of its operations.
        keys: the keys that they may touch.
        ids: what they do with an id.
        arguments: their arguments.
    """

    name: str
    verb: Verb
    keys: Keys
    ids: IdUse
    arguments: Arguments


WITH_LEDGER: Final = {
    Verb.CLAIM: RunKind("claim_remembered", Verb.CLAIM, Keys.BESIDE, IdUse.NAMES, CLAIM_REMEMBERED),
    Verb.SETTLE: RunKind("settle_remembered", Verb.SETTLE, Keys.BESIDE, IdUse.REMEMBERS, SETTLE_REMEMBERED),
}
"""The runs of operations in which a ledger takes part. Version 0.1.0 has them as verbs of their own."""
RUNS: Final = {verb: RunKind(verb.value, verb, verb.row.keys, verb.row.ids, ARGUMENTS[verb]) for verb in Verb}
"""The runs of the other operations, by their verb."""
BY_NAME: Final = {run.name.encode(): run for run in (*RUNS.values(), *WITH_LEDGER.values())}
"""All runs, by their names."""
MAX_ARGUMENTS = 3 + MAX_OPERATIONS * max(
    1 + run.arguments.most + (run.ids is not IdUse.NONE) for run in BY_NAME.values()
)
"""The arguments that one FD.RUN may have: a key and at most 13 arguments for each operation."""


def runs_of(verb: Verb, ops: Sequence[Op]) -> list[tuple[RunKind, Sequence[Op]]]:
    """Return the runs of a batch, in the order of its operations, and the operations of each."""
    if verb not in WITH_LEDGER or all(op.remembering is None for op in ops):
        return [(RUNS[verb], ops)]
    return [
        (RUNS[verb] if plain else WITH_LEDGER[verb], list(run))
        for plain, run in groupby(ops, lambda op: op.remembering is None)
    ]


def pack_run(run: RunKind, ops: Sequence[Any], *, reasons: bool, patience: bool) -> bytes:
    """Return the command for these operations.

    Args:
        run: that of the operations.
        ops: the operations.
        reasons: the sidecar takes reasons.
        patience: the sidecar takes `PATIENT`.
    """
    args = run.arguments.pack(ops)
    if run.ids is not IdUse.NONE:
        args += [id_of(op) for op in ops]  # empty for one that takes back what another call has remembered
    if reasons and run.verb in UNREPEATED and any(op.reason for op in ops):
        args = [WHY, *[op.reason for op in ops], *args]
    if patience and run.verb is Verb.FIRST:
        args = [PATIENT, *args]
    return pack("FD.RUN", run.name, len(ops), *[op.wire for op in ops], *args)


def unpack(run: RunKind, keys: Sequence[bytes], args: Sequence[bytes]) -> list[Op]:
    """Return the operations on these keys.

    Raises:
        ConfigError: the arguments are not those of the run.
    """
    verb = run.verb
    try:
        ids: Sequence[bytes] = ()
        reasons: Sequence[bytes] = ()
        if verb in UNREPEATED and args[:1] == [WHY]:
            reasons, args = args[1 : 1 + len(keys)], args[1 + len(keys) :]
            if len(reasons) < len(keys):
                raise ValueError("there must be a reason for each key")
        patient = verb is Verb.FIRST and args[:1] == [PATIENT]
        if patient:
            args = args[1:]
        if run.ids is not IdUse.NONE:
            if len(args) < len(keys):
                raise ValueError("there must be an id for each key")
            args, ids = args[: -len(keys)], args[-len(keys) :]
        ops = list(run.arguments.read(keys, args))
        for op, name in zip(ops, ids, strict=False):  # the lengths are compared below
            _take_id(op, name)
        for op, reason in zip(ops, reasons, strict=False):
            _take_reason(op, reason)
        if verb is Verb.FIRST and not patient:
            _let_hurry(ops)
    except (LookupError, ValueError) as error:
        raise ConfigError(f"FD.RUN {run.name}: malformed arguments: {error}") from None
    if len(ops) != len(keys):
        raise ConfigError(f"FD.RUN {run.name}: the arguments are for {len(ops)} of {len(keys)} keys")
    return ops


def _let_hurry(ops: Sequence[Any]) -> None:
    """Let no operation wait for another call that may be taken back: its client does not know PENDING."""
    for op in ops:
        op.entry = op.entry[:-NONCE_BYTES] + without_patience(op.entry[-NONCE_BYTES:])


def _take_id(op: Any, id: bytes) -> None:
    """Let an operation know its id; that of a claim is the key."""
    if len(id) > MAX_ID:
        raise ValueError("an id is too long")
    if isinstance(op, ClaimOp):
        op.unless = place_of(op)._replace(id=id)
        if id:
            op.key = id.decode()
    elif isinstance(op, SettleOp):
        op.also = place_of(op)._replace(id=id)
    else:
        op.id = id


def place_of(op: Op) -> LedgerPlace:
    """Return the place of the id in the ledger that takes part in an operation."""
    return cast(LedgerPlace, op.remembering)


def id_of(op: Any) -> bytes:
    """Return an operation's id."""
    return cast(bytes, op.id if op.remembering is None else place_of(op).id)


def _take_reason(op: Any, reason: bytes) -> None:
    """Let an operation know why it is asked for."""
    text = reason.decode()
    if len(text) > MOST_REASON:
        raise ValueError("a reason is too long")
    op.reason = text


def terms_of(op: Any) -> LedgerTerms:
    """Return what an operation that remembers an id knows of its ledger."""
    return cast(LedgerTerms, op.terms) if op.verb is Verb.FIRST else place_of(op).terms
