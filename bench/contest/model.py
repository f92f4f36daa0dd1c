"""The parts of a benchmark: contestants and their operations, scenarios, turns, and tables of figures."""

import secrets
from array import array
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from fastdedup.cli.bench import Row

Numbered = Iterator[tuple[int, str]]
Verb = Callable[[str], Any]  # takes a key, returns an awaitable
Won = Callable[[Any], bool]
Right = Callable[[str, Any], bool]
Spent = array  # nanoseconds, an item for each key; typecode "q"
Deal = Callable[["Ops", list[str]], Awaitable[list[str]]]
Drive = Callable[[str, Sequence[str], "Spent[int] | None"], Awaitable[float | None]]


class WrongReplayError(Exception):
    """A settled key was won again, or returned another result than its first."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The counts and seconds of one contestant's turn in one scenario."""

    ops: int
    seconds: float
    cpu: float | None  # seconds of this process; None where another process did the work

    @property
    def rate(self) -> float:
        """Operations in a second."""
        return self.ops / self.seconds


@dataclass(frozen=True, slots=True)
class Ops:
    """The operations of a connected contestant; None for an operation that it does not offer."""

    claim: Verb | None = None
    cycle: Verb | None = None  # claim, then store `result_of` the key
    replay: Verb | None = None  # claim, in a storm
    won: Won = bool  # from the answer to a claim: was this caller the first? (A cycle answers True.)
    right: Right = lambda key, answer: bool(answer)  # from the answer to a replay: see `as_expected`
    drive: Drive | None = None  # for a contestant with its own callers; a program returns its own seconds


@dataclass(frozen=True, slots=True)
class Setting:
    """The Redis that a contestant plays on. All its keys must start with `namespace` and expire by themselves."""

    url: str = field(repr=False)
    namespace: str
    callers: int
    width: int = 1
    private: bool = False  # True for a server that the run started, whose settings may be changed


@dataclass(frozen=True, slots=True)
class Contestant:
    """One row of a table. It plays with the `width` (connections, threads, pipelining) that is best in a warm-up."""

    name: str
    connect: Callable[[Setting], AbstractAsyncContextManager[Ops]]
    widths: tuple[int, ...] = (1,)
    unit: str = "connections"
    tuned: bool = True  # whether the garbage collector is tuned, see `collector`


@dataclass(frozen=True, slots=True)
class Scenario:
    """One table. `main` names the figure whose ratio to the baselines is shown."""

    name: str
    title: str
    verb: str  # a field of Ops
    callers: int
    main: str = "rate"
    latency: bool = False
    slices: int = 1  # parts of a round, where the machine's speed changes faster than rounds do
    deal: Deal | None = None  # makes the keys of a turn, where they are not all fresh

    @property
    def modes(self) -> tuple[bool, ...]:
        """The turns of a round: for each, whether it records latency. Recording costs time, so it has its own turn.

        A single caller mostly waits, so for it one turn does both.
        """
        return ((True,) if self.callers == 1 else (False, True)) if self.latency else (False,)


@dataclass(frozen=True, slots=True)
class Table:
    """The figures of a scenario; `curves` are named lines of (x, y) for a plot."""

    name: str
    title: str
    main: str
    rows: tuple[Row, ...]
    curves: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def row(self, contestant: str) -> Row:
        """Return a contestant's row; an empty row where it did not play."""
        return next((row for row in self.rows if row.contestant == contestant), Row(contestant))


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of a run. `max_ops` bounds the keys that a turn leaves in a Redis that the run must not empty."""

    url: str = field(repr=False)
    rounds: int = 3
    seconds: float = 0.5  # the length of one turn
    max_ops: int = 100_000
    private: bool = False
    clean: Callable[[], Awaitable[object]] | None = None  # empties a private Redis before a turn
    on_turn: Callable[[str], object] = lambda label: None
    namespace: str = field(default_factory=lambda: f"bench{secrets.token_hex(3)}")
