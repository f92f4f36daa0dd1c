"""What a benchmark is made of: contestants and what they offer, scenarios, turns, and tables of figures."""

import secrets
from array import array
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

Numbered = Iterator[tuple[int, str]]
Verb = Callable[[str], Any]  # a key in, an awaitable out
Won = Callable[[Any], bool]
Right = Callable[[str, Any], bool]
Spent = array  # of nanoseconds, one place a key; typecode "q"
Deal = Callable[["Ops", list[str]], Awaitable[list[str]]]
Drive = Callable[[str, Sequence[str], "Spent[int] | None"], Awaitable[float | None]]


class ClaimedTwiceError(Exception):
    """A fresh key was refused: the run is worthless."""


class WrongReplayError(Exception):
    """A settled key was won again, or has another result than its first."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One contestant's go at one scenario: counts and seconds."""

    ops: int
    seconds: float
    cpu: float | None  # of this process; None where another one did the work

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.ops / self.seconds


@dataclass(frozen=True, slots=True)
class Ops:
    """What a contestant offers once it is connected; None where it does not."""

    claim: Verb | None = None
    cycle: Verb | None = None  # claim, then store `result_of` the key
    replay: Verb | None = None  # claim, in a storm
    won: Won = bool  # from claim's answer: was this caller the first? (A cycle answers True.)
    right: Right = lambda key, answer: bool(answer)  # from replay's answer: see `as_expected`
    drive: Drive | None = None  # for one that brings its own callers; a program returns its own seconds


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a contestant plays. Whatever it writes must start with `namespace` and expire by itself."""

    url: str = field(repr=False)
    namespace: str
    callers: int
    width: int = 1
    private: bool = False  # a server of our own, whose settings may be changed


@dataclass(frozen=True, slots=True)
class Contestant:
    """One row. The `width` (connections, threads, pipelining depth) that is fastest in a warm-up plays."""

    name: str
    connect: Callable[[Setting], AbstractAsyncContextManager[Ops]]
    widths: tuple[int, ...] = (1,)
    unit: str = "connections"
    tuned: bool = True  # the garbage collector, see `collector`


@dataclass(frozen=True, slots=True)
class Scenario:
    """One table. `main` is the figure whose ratio to the baselines is given."""

    name: str
    title: str
    verb: str  # the field of Ops
    callers: int
    main: str = "rate"
    latency: bool = False
    slices: int = 1  # that a round is cut into, where the machine's moods last shorter than a round
    deal: Deal | None = None  # the keys of a turn, where they are not all fresh

    @property
    def modes(self) -> tuple[bool, ...]:
        """The turns of a round, and whether latency is recorded in them: apart, as recording costs time.

        One caller alone spends so long waiting that it does not matter.
        """
        return ((True,) if self.callers == 1 else (False, True)) if self.latency else (False,)


@dataclass(frozen=True, slots=True)
class Row:
    """A contestant's figures: ``rate`` per second, ``cpu_us`` per operation, ``p50_ms``, ``p99_ms``."""

    contestant: str
    figures: Mapping[str, float] = field(default_factory=dict)
    ratios: Mapping[str, float] = field(default_factory=dict)  # by the baseline's name
    note: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A scenario's outcome; `curves` are named lines of (x, y) for a plot."""

    name: str
    title: str
    main: str
    rows: tuple[Row, ...]
    curves: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def row(self, contestant: str) -> Row:
        """A contestant's row, empty where there is none."""
        return next((row for row in self.rows if row.contestant == contestant), Row(contestant))


@dataclass(frozen=True, slots=True)
class Plan:
    """How a run is sized. `max_ops` bounds what one turn leaves in a Redis that is not ours to empty."""

    url: str = field(repr=False)
    rounds: int = 3
    seconds: float = 0.5  # of one turn
    max_ops: int = 100_000
    private: bool = False
    clean: Callable[[], Awaitable[object]] | None = None  # empties a private Redis before a turn
    on_turn: Callable[[str], object] = lambda label: None
    namespace: str = field(default_factory=lambda: f"bench{secrets.token_hex(3)}")
