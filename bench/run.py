"""The sizes of a run, which every scenario gets, and the form of a line in the table of scenarios."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bench.contest import Plan, Table


@dataclass(frozen=True, slots=True)
class Run:
    """A run's sizes; `plan` has the Redis, and whether the run may empty it."""

    plan: Plan
    live_keys: int  # for growth, at most
    claims: int  # for the soak
    sweep: tuple[int, ...]  # numbers of callers
    ids: int = 100_000  # of the ledger
    records: int = 10_000  # for the mean of memory


@dataclass(frozen=True, slots=True)
class Job:
    """A line of the table in scenarios.py. `needs_private` jobs are left out with ``--url``."""

    name: str
    play: Callable[[Run], Awaitable[Table]]
    steps: Callable[[Run], int]  # how often the job calls Plan.on_turn
    needs_private: bool = False
