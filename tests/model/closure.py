"""Every record that a key can hold, and every operation on each of them: the stores must answer as the spec does.

Breadth first from the absent key. Two records count as one if they differ only in what nothing depends on: the time
of day, how high the fence is, how often beyond twice the key was acquired, how long ago its lease has ended. Each
operation comes at once, just before and just after the lease ends, and just before and just after the record expires.
Each is sent twice.

A new verb, or a new way to call one, is one line of an alphabet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Protocol

from .sides import NOW_MS, NOW_US, Case, Outcome, by_spec, image
from .spec import (
    FAILED,
    HELD,
    MACHINE,
    SUCCEEDED,
    Claim,
    Forget,
    Issue,
    Read,
    Record,
    Release,
    Renew,
    Settle,
    Transition,
    present,
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


class Side(Protocol):
    """A store; see `sides.py`."""

    name: str
    expires_early: bool
    """It removes a record at the last millisecond of its life, and not after it."""

    def run(self, cases: Sequence[Case]) -> Any:
        """Return an outcome for each of these cases, which all come after the same wait."""
        ...


def canonical(record: Record | None, now_us: int) -> Record | None:
    """Return the record that stands for all those like this one, as it stands at `NOW_US`."""
    record = present(record, now_us)
    if record is None:
        return None
    now_ms = now_us // 1000
    version = min(record.fence, 3)
    fence = version if record.state == MACHINE else FENCE if record.fence <= now_us else AHEAD
    until = record.until and max(record.until - now_ms, 0) + NOW_MS
    expires = record.expires - now_ms + NOW_MS
    return record._replace(fence=fence, attempt=min(record.attempt, 2), until=until, expires=expires)


def waits(record: Record | None) -> Iterator[int]:
    """Yield how many milliseconds pass before the next operation."""
    yield 0
    if record is None:
        return
    left, ttl = record.until - NOW_MS, record.expires - NOW_MS
    ends = [left - 1, left] if record.state in HELD and left > 0 else []
    yield from sorted({each for each in (*ends, ttl - 1, ttl) if each > 0})


def is_in_last_millisecond(case: Case) -> bool:
    return case.record is not None and case.record.expires == NOW_MS + case.wait + 1


class Closure:
    """What was reached, and what the stores were asked.

    Args:
        alphabet: the operations.
        every: the sides execute each so many-th case, and the spec each of them.
    """

    def __init__(self, alphabet: Alphabet, *, every: int = 1) -> None:
        self._alphabet = alphabet
        self._every = every
        self.ways: dict[Record | None, tuple[Record | None, int, str] | None] = {None: None}
        """Each record, with a record before it, a wait, and the operation that made it."""
        self.transitions = 0

    def explore(self, *sides: Side) -> Closure:
        """Hold each side against the spec; raises AssertionError with the shortest way to the first difference."""
        frontier: list[Record | None] = [None]
        while frontier:
            reached: dict[Record | None, None] = {}
            for cases in self._batches(frontier):
                now_us = NOW_US + cases[0].wait * 1000
                told = [by_spec(case) for case in cases]
                for side in sides:
                    self._compare(side, cases[:: self._every], told[:: self._every])
                for case, (first, _, second, _) in zip(cases, told, strict=True):
                    for record in (first, second):
                        after = canonical(record, now_us)
                        if after not in self.ways:
                            self.ways[after] = case.record, case.wait, case.name
                            reached[after] = None
                self.transitions += len(cases)
            frontier = list(reached)
        return self

    def _batches(self, frontier: Sequence[Record | None]) -> Iterator[list[Case]]:
        after: defaultdict[int, list[Case]] = defaultdict(list)
        for record in frontier:
            met = record or Record("", b"", FENCE)
            operations = [(name, make(met)) for name, make in self._alphabet.items()]
            for wait in waits(record):
                after[wait] += [Case(record, wait, name, ask) for name, ask in operations]
        for cases in after.values():
            for at in range(0, len(cases), BATCH):
                yield cases[at : at + BATCH]

    def _compare(self, side: Side, cases: Sequence[Case], told: Sequence[Any]) -> None:
        for case, (first, reply, second, again), outcome in zip(cases, told, side.run(cases), strict=True):
            expected = image(first), reply, image(second), again
            if outcome != expected and not (side.expires_early and is_in_last_millisecond(case)):
                raise AssertionError(self._report(side, case, expected, outcome))

    def _report(self, side: Side, case: Case, expected: Outcome, outcome: Outcome) -> str:
        steps = [*self._way(case.record), f"{case.wait} ms later: {case.name}, and again"]
        lines = [f"{number}. {each}" for number, each in zip(count(1), steps)]
        names = ("the record", "the reply", "the record after the resend", "its reply")
        for name, right, found in zip(names, expected, outcome, strict=True):
            if right != found:
                lines += [f"{name} by the spec: {right}", f"{name} by {side.name}: {found}"]
        return "\n".join(("the shortest way to a difference:", *lines))

    def _way(self, record: Record | None) -> list[str]:
        way = self.ways[record]
        if way is None:
            return []
        before, wait, name = way
        return [*self._way(before), f"{wait} ms later: {name}"]
