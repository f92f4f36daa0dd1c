"""Every record that a key can hold, and every operation on each of them: the stores must answer as the spec does.

Breadth first from the absent key. Two records count as one if they differ only in what nothing depends on: the time
of day, how high the fence is, how often beyond twice the key was acquired, how long ago its lease has ended. Each
operation comes at once, just before and just after the lease ends, and just before and just after the record expires.
If an id is remembered, an operation also comes at the last moment at which the id is pending, once it is not, when
the number of its tick comes again, and at and after the end of the window. Each operation is sent twice.

A new verb, or a new way to call one, is one line of an alphabet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Protocol

from . import windows
from .conversion import CALL, OTHER, WINDOW
from .sides import NOW_MS, NOW_US, Case, Outcome, Step, by_spec, image
from .spec import present
from .windows import TICK, ClaimRemembered, CompleteRemembered, Entry, First, ForgetId, Place, Seen
from .words import (
    FAILED,
    HELD,
    ISSUED,
    MACHINE,
    MAX_ATTEMPT,
    RELEASED,
    SUCCEEDED,
    WATCHED,
    WORKING,
    Adopt,
    Claim,
    Forget,
    Issue,
    Read,
    Record,
    Release,
    Renew,
    Settle,
    Touch,
    Transition,
)

A, B = b"\0" + b"a" * 10, b"\5buyer"
ISSUER, ANOTHER = b"\0" + b"i" * 10, b"\0" + b"j" * 10
X, Y = b"x" * 16, b"y" * 16
LEASE, KEEP = 10, 30
FENCE = NOW_US - 1_000_000
AHEAD = NOW_US + 1_000_000
BATCH = 4000

Alphabet = Mapping[str, Callable[[Record], Any]]
"""Operations by their names. Each gets the record that it meets, for its fence; of an absent key an empty record."""


def owner(who: bytes, fingerprint: bytes | None = None, mode: str = "claim", watch: bool = False) -> Any:
    return lambda met: Claim(who, LEASE, KEEP, fingerprint, mode, watch)


CLAIMS: Alphabet = {
    "A claims": owner(A),
    "A claims X": owner(A, X),
    "A claims Y and waits": owner(A, Y, watch=True),
    "A claims for less": lambda met: Claim(A, 4, 24),
    "B claims and waits": owner(B, watch=True),
    "B claims X": owner(B, X),
    "B claims Y": owner(B, Y),
    "A redeems": owner(A, None, "redeem"),
    "A redeems X": owner(A, X, "redeem"),
    "A redeems Y": owner(A, Y, "redeem"),
    "B redeems and waits": owner(B, None, "redeem", watch=True),
    "B redeems X": owner(B, X, "redeem"),
    "A consumes": owner(A, None, "consume"),
    "A consumes X": owner(A, X, "consume"),
    "B consumes X": owner(B, X, "consume"),
    "B consumes Y": owner(B, Y, "consume"),
    "A completes": lambda met: Settle(A, met.fence, 25, SUCCEEDED, b"done"),
    "A completes with another result": lambda met: Settle(A, met.fence, 40, SUCCEEDED, b"else"),
    "A completes without a result": lambda met: Settle(A, 0, 25),
    "A completes late": lambda met: Settle(A, met.fence - 1, 25, SUCCEEDED, b"done"),
    "B completes": lambda met: Settle(B, met.fence, 25, SUCCEEDED, b"done"),
    "B completes without a result": lambda met: Settle(B, 0, 40),
    "A fails": lambda met: Settle(A, met.fence, 20, FAILED, b"why"),
    "A fails late": lambda met: Settle(A, met.fence - 1, 20, FAILED),
    "B fails": lambda met: Settle(B, 0, 20, FAILED),
    "A releases": lambda met: Release(A, met.fence),
    "A releases late": lambda met: Release(A, met.fence - 1),
    "A releases what it consumed": lambda met: Release(A, met.fence, consumed=True),
    "A releases late what it consumed": lambda met: Release(A, met.fence - 1, consumed=True),
    "B releases": lambda met: Release(B, 0),
    "B releases what it consumed": lambda met: Release(B, 0, consumed=True),
    "A renews": lambda met: Renew(A, met.fence, LEASE, KEEP),
    "A renews for less": lambda met: Renew(A, 0, 4, 24),
    "A renews late": lambda met: Renew(A, met.fence - 1, LEASE, KEEP),
    "B renews": lambda met: Renew(B, 0, LEASE, KEEP),
    "A touches": lambda met: Touch(A, met.fence, KEEP),
    "A touches for less": lambda met: Touch(A, 0, 5),
    "A touches late": lambda met: Touch(A, met.fence - 1, KEEP),
    "B touches": lambda met: Touch(B, 0, KEEP),
    "a token is issued": lambda met: Issue(ISSUER, 35),
    "a token is issued for X": lambda met: Issue(ANOTHER, 35, X),
    "its record is read": lambda met: Read(),
    "its record is forgotten": lambda met: Forget(),
}


def move(change: bytes, to: bytes, sources: bytes, behind: int | None = None, again: bool = False) -> Any:
    """Return a transition. `behind`: how far the version that it expects is behind the present one."""
    states = frozenset(sources.split())

    def made(met: Record) -> Transition:
        version = None if behind is None else max((met.fence if met.state else 0) - behind, 0)
        return Transition(change, to, states, b"new", KEEP, version, again)

    return made


PAY, SHIP = b"p" * 10, b"s" * 10
MACHINES: Alphabet = {
    "pays": move(PAY, b"paid", b"new"),
    "pays again after no reply": move(PAY, b"paid", b"new", again=True),
    "pays the version that it saw": move(PAY, b"paid", b"new", 0),
    "pays one version too late": move(PAY, b"paid", b"new", 1),
    "pays two versions too late": move(PAY, b"paid", b"new", 2),
    "pays two versions too late, after no reply": move(PAY, b"paid", b"new", 2, again=True),
    "ships": move(SHIP, b"shipped", b"paid"),
    "ships one version too late, after no reply": move(SHIP, b"shipped", b"paid", 1, again=True),
    "takes back": move(b"t" * 10, b"new", b"paid shipped"),
    "another one pays": move(b"o" * 10, b"paid", b"new shipped"),
    "stays new": move(b"n" * 10, b"new", b"new"),
    "reads": lambda met: Read(),
    "forgets": lambda met: Forget(),
}


def brings(
    ours: Record, fence: str = "the same", base: str = "", left: int = LEASE, keep: int = KEEP
) -> Callable[[Record], Adopt]:
    """Return an adoption. `fence`: the same, earlier or later. `base`: what is met, our own record, or unknown."""

    def made(met: Record) -> Adopt:
        away = {"the same": 0, "earlier": -10, "later": 2_000_000}[fence]
        record = ours._replace(fence=max(met.fence + away, 1))
        bases = {"": None, "met": (met.owner or A, met.fence), "own": (record.owner, record.fence)}
        return Adopt(record, left, keep, bases[base])

    return made


def chosen(alphabet: Alphabet, *names: str) -> Alphabet:
    return {name: alphabet[name] for name in names}


DAYS_AHEAD = NOW_US + 3 * 86_400_000_000
AT_WORK, DONE = Record(WORKING, A, attempt=1), Record(SUCCEEDED, A, attempt=1, result=b"done")
USED = Record(SUCCEEDED, A, attempt=1, token=True)
IDLE = Record(RELEASED, A, attempt=1)
ADOPTIONS: Alphabet = {
    **CLAIMS,
    "A is at work elsewhere": brings(AT_WORK),
    "A is at work elsewhere, and was later": brings(AT_WORK, "later"),
    "A is at work elsewhere, and was earlier": brings(AT_WORK, "earlier"),
    "A is at work elsewhere, as the store had said": brings(AT_WORK, "earlier", "own"),
    "A is at work elsewhere, and B gave way": brings(AT_WORK, "later", "met"),
    "B is at work elsewhere for X": brings(Record(WATCHED, B, attempt=2, fingerprint=X), "later"),
    "A worked elsewhere, and its lease is over": brings(AT_WORK, "later", left=-1),
    "A has released elsewhere": brings(IDLE, left=0),
    "A has released elsewhere, and was earlier": brings(IDLE, "earlier", left=0),
    "A has released elsewhere what is here": brings(IDLE, "the same", "met", left=0),
    "A is done elsewhere": brings(DONE, left=25, keep=25),
    "A is done elsewhere, and was later": brings(DONE, "later", left=25, keep=25),
    "A is done elsewhere, as the store had said": brings(DONE, "earlier", "own", left=25, keep=25),
    "A is done elsewhere, and B gave way": brings(DONE, "earlier", "met", left=25, keep=25),
    "A has failed elsewhere": brings(DONE._replace(state=FAILED), left=20, keep=20),
    "A has failed elsewhere, and was later": brings(DONE._replace(state=FAILED), "later", left=20, keep=20),
    "A has used a token elsewhere": brings(USED, left=KEEP),
    "A has used a token elsewhere, and was later": brings(USED, "later", left=KEEP),
    "B has used a token elsewhere": brings(USED._replace(owner=B), "later", left=KEEP),
    "a token was issued elsewhere": brings(Record(ISSUED, ISSUER, token=True), left=35, keep=35),
    "a record comes from the far future": lambda met: Adopt(AT_WORK._replace(fence=DAYS_AHEAD), LEASE, KEEP),
    "a record comes that is over": brings(AT_WORK, "later", left=-1, keep=0),
}
PAID = Record(MACHINE, PAY, result=b"paid")
MOVES_ELSEWHERE: Alphabet = {
    **MACHINES,
    "was paid elsewhere": brings(PAID, "later", left=KEEP),
    "was paid elsewhere before it was shipped": brings(PAID, "earlier", left=KEEP),
    "was shipped elsewhere from here": brings(
        Record(MACHINE, SHIP, result=b"shipped"), "the same", "met", left=KEEP
    ),
}
SLOT, PATIENCE = WINDOW // 100, 1
PENDS = PATIENCE * TICK
"""For so many milliseconds an id is pending for a call with patience, and for up to a tick more."""
AGES = (0, PENDS - 1, PENDS + TICK)
"""Of an id: just remembered, the last one at which it is pending, and one at which it is no more."""
EMPTY = Place()
ALL: Mapping[str, int] = {}
"""Each side executes each case."""


def remembered(who: bytes, fingerprint: bytes | None = None, watch: bool = False) -> Any:
    return lambda met: ClaimRemembered(Claim(who, LEASE, KEEP, fingerprint, watch=watch))


def completes(who: bytes, late: int = 0, keep: int = 25) -> Any:
    return lambda met: CompleteRemembered(Settle(who, met.fence - late, keep, SUCCEEDED, b"done"), WINDOW)


LEDGERS: Alphabet = {
    "a call asks whether it is the first": lambda met: First(CALL, WINDOW),
    "another call asks whether it is the first": lambda met: First(OTHER, WINDOW),
    "a call with patience asks whether it is the first": lambda met: First(OTHER, WINDOW, PATIENCE),
    "the id is looked for": lambda met: Seen(),
    "the first call looks whether it was": lambda met: Seen(CALL),
    "the id is forgotten": lambda met: ForgetId(),
    "the first call is taken back": lambda met: ForgetId(CALL),
    "another call is taken back": lambda met: ForgetId(OTHER),
    "A claims what is remembered": remembered(A),
    "A claims X, which is remembered": remembered(A, X),
    "B claims what is remembered, and waits": remembered(B, watch=True),
    "B claims Y, which is remembered": remembered(B, Y),
    "A completes what is remembered": completes(A),
    "A completes late what is remembered": completes(A, late=1),
    "B completes what is remembered": completes(B, keep=40),
    **chosen(CLAIMS, "A fails", "B fails", "A releases", "B releases", "A renews for less"),
    **chosen(CLAIMS, "its record is read", "its record is forgotten"),
}

DENSE: Alphabet = {name: made for name, made in LEDGERS.items() if "call" in name or "the id" in name}
"""A dense ledger remembers no claims."""


class Side(Protocol):
    """A store; see `sides.py`."""

    name: str
    expires_early: bool
    """It removes a record at the last millisecond of its life, and not after it."""
    seen_us: int
    """The latest time that is known from before: later than a server's if its clock was set back."""

    def run(self, cases: Sequence[Case], width: int) -> Any:
        """Return an outcome for each of these cases, which all come after the same wait.

        `width`: of the digests of the ledger; 0 if there is none.
        """
        ...


def canonical(place: Place, now_us: int) -> Place:
    """Return the place that stands for all those like this one, as it stands at `NOW_US`."""
    return Place(
        canonical_record(present(place.record, now_us), now_us), canonical_entry(place.entry, now_us)
    )


def canonical_record(record: Record | None, now_us: int) -> Record | None:
    if record is None:
        return None
    now_ms = now_us // 1000
    version = min(record.fence, 3)
    fence = version if record.state == MACHINE else FENCE if record.fence <= now_us else AHEAD
    until = record.until and max(record.until - now_ms, 0) + NOW_MS
    expires = record.expires - now_ms + NOW_MS
    attempt = min(record.attempt, 2) if record.attempt < MAX_ATTEMPT - 1 else record.attempt
    return record._replace(fence=fence, attempt=attempt, until=until, expires=expires)


def canonical_entry(entry: Entry | None, now_us: int) -> Entry | None:
    """Return an entry with an age at which the same happens: until its window ends, whether it is pending."""
    left = -1 if entry is None else entry.until - now_us // 1000
    if entry is None or left < 0:
        return None
    age = max(each for each in AGES if each <= WINDOW - left)
    return entry._replace(until=NOW_MS + (WINDOW - age if left > 0 else 0))


def waits(place: Place) -> Iterator[int]:
    """Yield how many milliseconds pass before the next operation."""
    moments = {0}
    if place.record is not None:
        left, ttl = place.record.until - NOW_MS, place.record.expires - NOW_MS
        moments |= {ttl - 1, ttl}
        if place.record.state in HELD:
            moments |= {left - 1, left}
    if place.entry is not None:
        left = place.entry.until - NOW_MS
        age, gone = WINDOW - left, left + 1 + 2 * SLOT
        pends, wraps = PENDS - age, 256 * TICK - age
        moments = {each for each in moments if not (left < each < gone or pends <= each < pends + TICK)}
        moments |= {pends - 1, pends + TICK, wraps, left, gone}
    yield from sorted(each for each in moments if each >= 0)


def is_in_last_millisecond(case: Case) -> bool:
    record = case.place.record
    return record is not None and record.expires == NOW_MS + case.wait + 1


class Closure:
    """What was reached, and what the stores were asked.

    Args:
        alphabet: the operations.
        width: of the digests of the ledger; 0 if there is none.
        every: by their names, the sides that execute each so many-th case only. The spec executes each of them.
        start: what stands at first.
        step: what the sides must do.
    """

    def __init__(
        self,
        alphabet: Alphabet,
        *,
        width: int = 0,
        every: Mapping[str, int] = ALL,
        start: Place = EMPTY,
        step: Step = windows.step,
    ) -> None:
        self._alphabet = alphabet
        self._step = step
        self._width = width
        self._every = every
        self.ways: dict[Place, tuple[Place, int, str] | None] = {start: None}
        """Each place that was reached, with a place before it, a wait, and the operation that led from there."""
        self.transitions = 0

    def explore(self, *sides: Side) -> Closure:
        """Hold each side against the spec; raises AssertionError with the shortest way to the first difference."""
        frontier = [*self.ways]
        while frontier:
            known = len(self.ways)
            for cases in self._batches(frontier):
                told = [by_spec(case, self._step) for case in cases]
                expected = [
                    (image(first), reply, image(second), again) for first, reply, second, again in told
                ]
                for side in sides:
                    every = self._every.get(side.name, 1)
                    self._compare(side, cases[::every], expected[::every])
                for case, (first, _, second, _) in zip(cases, told, strict=True):
                    for place in dict.fromkeys((first, second)):
                        after = canonical(place, NOW_US + case.wait * 1000)
                        self.ways.setdefault(after, (case.place, case.wait, case.name))
                self.transitions += len(cases)
            frontier = list(self.ways)[known:]
        return self

    def _batches(self, frontier: Sequence[Place]) -> Iterator[list[Case]]:
        after: defaultdict[int, list[Case]] = defaultdict(list)
        for place in frontier:
            met = place.record or Record("", b"", FENCE)
            operations = [(name, make(met)) for name, make in self._alphabet.items()]
            for wait in waits(place):
                after[wait] += [Case(place, wait, name, ask) for name, ask in operations]
        for cases in after.values():
            for at in range(0, len(cases), BATCH):
                yield cases[at : at + BATCH]

    def _compare(self, side: Side, cases: Sequence[Case], expected: Sequence[Outcome]) -> None:
        outcomes = side.run(cases, self._width)
        for case, right, outcome in zip(cases, expected, outcomes, strict=True):
            if outcome != right and not (side.expires_early and is_in_last_millisecond(case)):
                raise AssertionError(self._report(side, case, right, outcome))

    def _report(self, side: Side, case: Case, expected: Outcome, outcome: Outcome) -> str:
        steps = [*self._way(case.place), f"{case.wait} ms later: {case.name}, and again"]
        lines = [f"{number}. {each}" for number, each in zip(count(1), steps)]
        names = ("what stands", "the reply", "what stands after the resend", "its reply")
        for name, right, found in zip(names, expected, outcome, strict=True):
            if right != found:
                lines += [f"{name} by the spec: {right}", f"{name} by {side.name}: {found}"]
        return "\n".join(("the shortest way to a difference:", *lines))

    def _way(self, place: Place) -> list[str]:
        way = self.ways[place]
        if way is None:
            return []
        before, wait, name = way
        return [*self._way(before), f"{wait} ms later: {name}"]
