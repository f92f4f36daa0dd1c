"""The protocol between a store and the sidecar: `FD.RUN`, a batch of operations of one verb.

    FD.RUN verb count key... args...

The arguments are those of the verb's script (`lua/<verb>.lua`), packed by the same code; `unpack.py` reads them. The
key of a bucket is left out where a record's key begins with it. Behind the arguments of a verb of `OF_IDS` stand the
ids themselves, one for each operation: the sidecar's policy needs them, as another form has other digests. Where
somebody said why a record or an id is forgotten, `WHY` and a reason for each operation stand before the arguments.
Before those of `first` stands `PATIENT`.

The reply is an array of runs. A run has the number of operations that it answers, its kind, and its fields: an answer
to a batch of fresh claims, or of settled ones, is a single run. Unlike a script's reply it also tells what a policy
adds: that an answer is degraded, or that an operation has no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from ...errors import ForeignRecordError, ResultTooLargeError, UnavailableError
from ...kernel.codes import Code
from ...kernel.operations import Adopted, RefusedAlone, Reply, StoredForm, TransitionReply, Verdict, Weight
from ...kernel.records import Stored
from ...kernel.verbs import IdUse, Verb
from ...ledger.operations import LedgerTerms
from ...model import Outcome

PROTOCOL = 2
"""The number that the client sends in `FD.STORE`; a sidecar of another protocol refuses it."""
MAX_OPERATIONS = 256
"""The operations that one FD.RUN may have."""
WHY = b"why"
"""Stands before the reasons of operations; no script has an argument like it. Version 0.1.0 does not know it."""
PATIENT = b"patient"
"""Stands before the arguments of `first`: the client knows PENDING, and the last byte of a nonce is its patience."""
MAX_ARGUMENTS = 3 + MAX_OPERATIONS * max(verb.row.form.most for verb in Verb)
"""The arguments that one FD.RUN may have: a key and at most 13 arguments for each operation."""
OF_IDS = frozenset(verb for verb in Verb if verb.row.form.ids is not IdUse.NONE)
"""Verbs whose operations are about one id of a ledger."""
REMEMBERING = tuple(verb for verb in Verb if verb.row.form.ids is IdUse.REMEMBERS)
"""Verbs that write into a ledger's buckets, and hear how full these are."""

_DEGRADED, _SHORT, _STALE, _TOKEN, _SETTLED = 1, 2, 4, 8, 16
_OUTCOMES = tuple(Outcome)
_NUMBERS = {outcome: number for number, outcome in enumerate(_OUTCOMES)}
_CODES = {code.value: code for code in Code}
_VERDICT, _CODE, _MOVED, _STORED, _ADOPTED, _UNAVAILABLE, _TOO_LARGE, _UNSURE, _FOREIGN, _ALONE = range(10)
_FORM, _WEIGHT, _FILL, _PRESENT = 10, 11, 12, 13


class Unsure:
    """The answer LOST to a release or a settling that the sidecar sent twice: the first may have taken effect."""


UNSURE: Any = Unsure()


class Fill:
    """Stands behind the answers to a batch of `first`: how full the buckets of a ledger were that it has written.

    Attributes:
        place: the place of an operation on this ledger.
        entries: the entries in a bucket, a moving mean.
    """

    __slots__ = ("entries", "place")

    def __init__(self, place: int, entries: float) -> None:
        self.place = place
        self.entries = entries


class Present:
    """Stands behind the answers to a batch of claims: the trace of an owner whose record a claim has met.

    Only for a claim that is made in a trace itself: a client that knows nothing of this gets none.

    Attributes:
        place: the place of the claim.
        owner: the owner's field, veiled: nobody can settle by it.
    """

    __slots__ = ("owner", "place")

    def __init__(self, place: int, owner: bytes) -> None:
        self.place = place
        self.owner = owner


def ids_of(ops: Sequence[Any]) -> list[bytes]:
    """Return the ids of operations of `OF_IDS`; empty for one that takes back what another call has remembered."""
    return [op.id for op in ops]


def terms_of(op: Any) -> LedgerTerms:
    """Return what an operation of `REMEMBERING` knows of its ledger."""
    terms: LedgerTerms = op.terms if op.verb is Verb.FIRST else op.ledger_terms
    return terms


def with_reasons(ops: Sequence[Any], args: list[Any]) -> list[Any]:
    """Return the arguments of operations of `UNREPEATED`, behind their reasons where one has any."""
    reasons = [op.reason for op in ops]
    return [WHY, *reasons, *args] if any(reasons) else args


# The sidecar's side


def encode(answers: Sequence[Reply | Fill | Present]) -> bytes:
    """Return the reply to an FD.RUN, as RESP."""
    out: list[bytes] = []
    size = 0
    for _, run in groupby(answers, id):
        same = list(run)
        answer = same[0]
        fields, text = _ENCODERS.get(type(answer), _encode_unavailable)(answer)
        out.append(b":%d\r\n" % len(same))
        out.append(text)
        size += fields
    return b"*%d\r\n%b" % (size, b"".join(out))


def _encode_verdict(verdict: Verdict) -> tuple[int, bytes]:
    flags = _DEGRADED * verdict.degraded | _SHORT * verdict.underreplicated | _STALE * (not verdict.fresh)
    payload = verdict.payload or verdict.former  # a claim that took a key over has no result
    return 8, b":0\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n$%d\r\n%b\r\n" % (
        _NUMBERS[verdict.outcome],
        verdict.fence,
        verdict.attempt,
        verdict.left_ms,
        flags,
        len(payload),
        payload,
    )


def _encode_code(code: Code) -> tuple[int, bytes]:
    return 3, b":1\r\n:%d\r\n" % code


def _encode_moved(moved: TransitionReply) -> tuple[int, bytes]:
    flags = _DEGRADED * moved.degraded | _SHORT * moved.underreplicated
    return 6, b":2\r\n:%d\r\n%b:%d\r\n:%d\r\n" % (
        moved.code,
        _bulk(moved.state.encode()),
        moved.version,
        flags,
    )


def _encode_stored(stored: Stored) -> tuple[int, bytes]:
    numbers = (stored.fence, stored.attempt, stored.left_ms, stored.ttl_ms, _TOKEN * stored.token)
    texts = (stored.state.encode(), stored.owner, stored.fingerprint or b"", stored.payload)
    return 11, b":3\r\n" + b"".join(b":%d\r\n" % number for number in numbers) + b"".join(map(_bulk, texts))


def _encode_adopted(adopted: Adopted) -> tuple[int, bytes]:
    numbers = (adopted.code, _bulk(adopted.owner), adopted.fence, _SETTLED * adopted.settled)
    return 6, b":4\r\n:%d\r\n%b:%d\r\n:%d\r\n" % numbers


def _encode_unavailable(error: UnavailableError) -> tuple[int, bytes]:
    return 4, b":5\r\n:%d\r\n%b" % (round(error.retry_after * 1000), _text(error))


def _encode_alone(error: RefusedAlone) -> tuple[int, bytes]:
    return 4, b":9\r\n:%d\r\n%b" % (round(error.retry_after * 1000), _text(error))


def _encode_too_large(error: ResultTooLargeError) -> tuple[int, bytes]:
    return 3, b":6\r\n%b" % _text(error)


def _encode_foreign(error: ForeignRecordError) -> tuple[int, bytes]:
    return 3, b":8\r\n%b" % _text(error)


def _encode_form(form: StoredForm) -> tuple[int, bytes]:
    return 4, b":10\r\n%b:%d\r\n" % (_bulk(form.text), form.now_ms)


def _encode_weight(weight: Weight) -> tuple[int, bytes]:
    return 5, b":11\r\n:%d\r\n:%d\r\n:%d\r\n" % (weight.entries, weight.living, weight.size)


def _encode_fill(fill: Fill) -> tuple[int, bytes]:
    return 4, b":12\r\n:%d\r\n:%d\r\n" % (fill.place, round(fill.entries * 1000))


def _encode_present(present: Present) -> tuple[int, bytes]:
    return 4, b":13\r\n:%d\r\n%b" % (present.place, _bulk(present.owner))


def _bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def _text(error: Exception) -> bytes:
    return _bulk(str(error).encode(errors="replace"))


_ENCODERS: dict[type, Callable[[Any], tuple[int, bytes]]] = {
    Verdict: _encode_verdict,
    Code: _encode_code,
    TransitionReply: _encode_moved,
    Stored: _encode_stored,
    Adopted: _encode_adopted,
    UnavailableError: _encode_unavailable,
    RefusedAlone: _encode_alone,
    ResultTooLargeError: _encode_too_large,
    ForeignRecordError: _encode_foreign,
    Unsure: lambda _: (2, b":7\r\n"),
    StoredForm: _encode_form,
    Weight: _encode_weight,
    Fill: _encode_fill,
    Present: _encode_present,
}


# The client's side


def read(reply: list[Any]) -> list[Any]:
    """Return the answers in a reply to FD.RUN, and what stands behind them. A malformed reply raises any error."""
    answers: list[Any] = []
    at = 0
    while at < len(reply):
        count, kind = reply[at], reply[at + 1]
        size, make = _READERS[kind]
        fields = reply[at + 2 : at + 2 + size]
        # An error that is raised collects a traceback, so each operation gets an instance of its own.
        shared = kind not in (_UNAVAILABLE, _TOO_LARGE, _FOREIGN, _ALONE)
        answers += [make(fields)] * count if shared else [make(fields) for _ in range(count)]
        at += 2 + size
    return answers


def _read_verdict(fields: list[Any]) -> Verdict:
    outcome, fence, attempt, left_ms, flags, payload = fields
    acquired = _OUTCOMES[outcome] is Outcome.ACQUIRED
    verdict = Verdict(
        _OUTCOMES[outcome],
        fence=fence,
        attempt=attempt,
        left_ms=left_ms,
        payload=b"" if acquired else payload,
        fresh=not flags & _STALE,
    )
    if acquired and payload:
        verdict.former = payload
    if flags:
        verdict.degraded = bool(flags & _DEGRADED)
        verdict.underreplicated = bool(flags & _SHORT)
    return verdict


def _read_code(fields: list[Any]) -> Code:
    return _CODES[fields[0]]


def _read_moved(fields: list[Any]) -> TransitionReply:
    code, state, version, flags = fields
    moved = TransitionReply(_CODES[code], state.decode(), version)
    moved.degraded, moved.underreplicated = bool(flags & _DEGRADED), bool(flags & _SHORT)
    return moved


def _read_stored(fields: list[Any]) -> Stored:
    fence, attempt, left_ms, ttl_ms, flags, state, owner, fingerprint, payload = fields
    return Stored(
        state.decode(),
        owner=owner,
        fence=fence,
        attempt=attempt,
        left_ms=left_ms,
        ttl_ms=ttl_ms,
        fingerprint=fingerprint or None,
        payload=payload,
        token=bool(flags & _TOKEN),
    )


def _read_adopted(fields: list[Any]) -> Adopted:
    code, owner, fence, flags = fields
    return Adopted(_CODES[code], owner, fence, settled=bool(flags & _SETTLED))


def _read_unavailable(fields: list[Any]) -> UnavailableError:
    return UnavailableError(fields[1].decode(), retry_after=fields[0] / 1000)


def _read_alone(fields: list[Any]) -> RefusedAlone:
    return RefusedAlone(fields[1].decode(), retry_after=fields[0] / 1000)


def _read_too_large(fields: list[Any]) -> ResultTooLargeError:
    return ResultTooLargeError(fields[0].decode())


def _read_foreign(fields: list[Any]) -> ForeignRecordError:
    return ForeignRecordError(fields[0].decode())


def _read_form(fields: list[Any]) -> StoredForm:
    text, now_ms = fields
    return StoredForm(text, now_ms, degraded=now_ms < 0)  # no store's clock shows that: a policy has answered


def _read_weight(fields: list[Any]) -> Weight:
    entries, living, size = fields
    return Weight(entries, living, size)


def _read_fill(fields: list[Any]) -> Fill:
    place, thousandths = fields
    return Fill(place, thousandths / 1000)


def _read_present(fields: list[Any]) -> Present:
    place, owner = fields
    return Present(place, owner)


_READERS: dict[int, tuple[int, Callable[[list[Any]], Reply | Fill | Present]]] = {
    _VERDICT: (6, _read_verdict),
    _CODE: (1, _read_code),
    _MOVED: (4, _read_moved),
    _STORED: (9, _read_stored),
    _ADOPTED: (4, _read_adopted),
    _UNAVAILABLE: (2, _read_unavailable),
    _TOO_LARGE: (1, _read_too_large),
    _FOREIGN: (1, _read_foreign),
    _UNSURE: (0, lambda _: UNSURE),
    _ALONE: (2, _read_alone),
    _FORM: (2, _read_form),
    _WEIGHT: (3, _read_weight),
    _FILL: (2, _read_fill),
    _PRESENT: (2, _read_present),
}
