"""The answers to an `FD.RUN`, a row of fields for each kind: by it the sidecar writes them, and a store reads them.

The reply is an array of runs. A run has the number of operations that it answers, its kind, and its fields: an answer
to a batch of fresh claims, or of settled ones, is a single run. Unlike a script's reply it also tells what a policy
adds: that an answer is degraded, or that an operation has no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

from ...errors import ForeignRecordError, ResultTooLargeError, UnavailableError
from ...kernel.codes import Code
from ...kernel.operations import Reply, Verdict
from ...kernel.records import Stored
from ...kernel.replies import Adopted, RefusedAlone, StoredForm, StoreRefusal, TransitionReply, Weight
from ...model import Outcome


class Unsure:
    """The answer LOST to a release or a settling that the sidecar sent twice: the first may have taken effect."""


UNSURE: Any = Unsure()


class Fill(NamedTuple):
    """Stands behind the answers to a batch of `first`: how full the buckets of a ledger were that it has written.

    Attributes:
        place: the place of an operation on this ledger.
        entries: the entries in a bucket, a moving mean.
    """

    place: int
    entries: float


class Present(NamedTuple):
    """Stands behind the answers to a batch of claims: the trace of an owner whose record a claim has met.

    Only for a claim that is made in a trace itself: a client that knows nothing of this gets none.

    Attributes:
        place: the place of the claim.
        owner: the owner's field, veiled: a client cannot settle with it.
    """

    place: int
    owner: bytes


class AnswerField(NamedTuple):
    """A field of an answer.

    Attributes:
        name: the name of a parameter of the answer's constructor.
        value: returns the field of an answer: a whole number or bytes.
        read: turns that back; None if it stays unchanged.
    """

    name: str
    value: Callable[[Any], int | bytes]
    read: Callable[[Any], Any] | None = None


class AnswerKind:
    """A kind of answers, and its fields in their order.

    Args:
        answers: the class.
        fields: those of an answer.
        make: makes an answer of its fields; None if the class does.
        shared: one object answers a whole run. Not so an error: one that is raised collects a traceback.
    """

    def __init__(
        self, answers: type, *fields: AnswerField, make: Callable[..., Any] | None = None, shared: bool = True
    ) -> None:
        self.answers = answers
        self.shared = shared
        self.size = len(fields)
        self._values = [field.value for field in fields]
        self._make = make or answers
        self._names = [field.name for field in fields]
        self._turned = [(field.name, field.read) for field in fields if field.read is not None]

    def write(self, answer: Any) -> bytes:
        """Return the fields of an answer."""
        values = [value_of(answer) for value_of in self._values]
        return b"".join(
            [b"$%d\r\n%b\r\n" % (len(v), v) if isinstance(v, bytes) else b":%d\r\n" % v for v in values]
        )

    def read(self, data: list[Any]) -> Any:
        """Return the answer that has these fields."""
        values = dict(zip(self._names, data, strict=True))
        for name, read in self._turned:
            values[name] = read(values[name])
        flags = values.pop("flags", ())
        answer = self._make(**values)
        for name, value in flags:
            setattr(answer, name, value)
        return answer


_DEGRADED, _SHORT, _STALE = 1, 2, 4
_OUTCOMES: Final = tuple(Outcome)
_PLACES: Final = {outcome: place for place, outcome in enumerate(_OUTCOMES)}
_CODES: Final = {code.value: code for code in Code}


def _plain(name: str) -> AnswerField:
    return AnswerField(name, attrgetter(name))


def _text(name: str) -> AnswerField:
    return AnswerField(name, lambda answer: getattr(answer, name).encode(), bytes.decode)


def _thousandths(name: str) -> AnswerField:
    return AnswerField(name, lambda answer: round(getattr(answer, name) * 1000), lambda number: number / 1000)


def _flags(**bits: int) -> AnswerField:
    """Return a field of attributes that are True or False, all False in a new answer."""

    def value(answer: Any) -> int:
        return sum([bit for name, bit in bits.items() if getattr(answer, name)])

    def read(number: int) -> Sequence[tuple[str, bool]]:
        return () if number == 0 else [(name, bool(number & bit)) for name, bit in bits.items()]

    return AnswerField("flags", value, read)


class VerdictKind(AnswerKind):
    """The kind of verdicts, which most answers are.

    By hand: by the table, writing and reading a duplicate's takes 57,000 instructions instead of 32,000. And a claim
    that took a key over has no result: in its place stands who held the key before.
    """

    def __init__(self) -> None:
        super().__init__(
            Verdict, *map(_plain, ("outcome", "fence", "attempt", "left_ms", "flags", "payload"))
        )

    def write(self, answer: Verdict) -> bytes:
        """Return the fields of a verdict."""
        payload = answer.payload or answer.former
        return b":%d\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n$%d\r\n%b\r\n" % (
            _PLACES[answer.outcome],
            answer.fence,
            answer.attempt,
            answer.left_ms,
            _DEGRADED * answer.degraded | _SHORT * answer.underreplicated | _STALE * (not answer.fresh),
            len(payload),
            payload,
        )

    def read(self, data: list[Any]) -> Verdict:
        """Return the verdict that has these fields."""
        place, fence, attempt, left_ms, flags, payload = data
        outcome = _OUTCOMES[place]
        acquired = outcome is Outcome.ACQUIRED
        verdict = Verdict(
            outcome,
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


def _form(text: bytes, now_ms: int) -> StoredForm:
    return StoredForm(text, now_ms, degraded=now_ms < 0)  # no store's clock shows that: a policy has answered


def _error(kind: type[Exception], *fields: AnswerField, make: type[Exception] | None = None) -> AnswerKind:
    """Return the kind of an error's answers: their fields, and behind these what it says. `make`: what is read."""
    message = AnswerField("message", lambda error: str(error).encode(errors="replace"), bytes.decode)
    return AnswerKind(
        kind, *fields, message, make=lambda message, **facts: (make or kind)(message, **facts), shared=False
    )


_CODE: Final = AnswerField("code", attrgetter("code"), _CODES.__getitem__)
_KINDS: Final = {
    0: VerdictKind(),
    1: AnswerKind(Code, AnswerField("code", int, _CODES.__getitem__), make=lambda code: code),
    2: AnswerKind(
        TransitionReply,
        _CODE,
        _text("state"),
        _plain("version"),
        _flags(degraded=_DEGRADED, underreplicated=_SHORT),
    ),
    3: AnswerKind(
        Stored,
        *map(_plain, ("fence", "attempt", "left_ms", "ttl_ms")),
        _flags(token=8),
        _text("state"),
        _plain("owner"),
        AnswerField("fingerprint", lambda stored: stored.fingerprint or b"", lambda data: data or None),
        _plain("payload"),
    ),
    4: AnswerKind(Adopted, _CODE, _plain("owner"), _plain("fence"), _flags(settled=16)),
    5: _error(UnavailableError, _thousandths("retry_after"), make=StoreRefusal),
    6: _error(ResultTooLargeError),
    7: AnswerKind(Unsure, make=lambda: UNSURE),
    8: _error(ForeignRecordError),
    9: _error(RefusedAlone, _thousandths("retry_after")),
    10: AnswerKind(StoredForm, _plain("text"), _plain("now_ms"), make=_form),
    11: AnswerKind(Weight, *map(_plain, ("entries", "living", "size"))),
    12: AnswerKind(Fill, _plain("place"), _thousandths("entries")),
    13: AnswerKind(Present, _plain("place"), _plain("owner")),
}
"""The kinds of answers by their numbers. A new one gets a new number: a client of a former version refuses it."""
_NUMBERS: Final = {kind.answers: number for number, kind in _KINDS.items()}


def encode(answers: Sequence[Reply | Fill | Present]) -> bytes:
    """Return the reply to an FD.RUN in RESP."""
    out: list[bytes] = []
    size = 0
    for _, run in groupby(answers, id):
        same = list(run)
        # Errors of other kinds are unavailability too.
        number = _NUMBERS.get(type(same[0]), _NUMBERS[UnavailableError])
        kind = _KINDS[number]
        size += 2 + kind.size
        out.append(b":%d\r\n:%d\r\n%b" % (len(same), number, kind.write(same[0])))
    return b"*%d\r\n%b" % (size, b"".join(out))


def read(reply: list[Any], most: int) -> list[Any]:
    """Return the answers in a reply to FD.RUN, and what stands behind them.

    Raises:
        any error: the reply is malformed, or has more than `most` of these.
    """
    answers: list[Any] = []
    at = 0
    while at < len(reply):
        count, kind = reply[at], _KINDS[reply[at + 1]]
        if not 0 < count <= most - len(answers):
            raise ValueError(f"{count} answers of one kind, behind {len(answers)} of {most} at most")
        end = at + 2 + kind.size
        fields = reply[at + 2 : end]
        answers += [kind.read(fields)] * count if kind.shared else [kind.read(fields) for _ in range(count)]
        at = end
    return answers
