"""What every scenario is given, and how a scenario stands in the table."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fastdedup.bench import Plan, Table


@dataclass(frozen=True, slots=True)
class Run:
    """A run's sizes; `plan` says where, and whether that Redis is ours to empty."""

    plan: Plan
    live_keys: int  # that growth goes up to
    claims: int  # that the soak makes
    sweep: tuple[int, ...]  # callers
    records: int = 10_000  # that memory is a mean of


@dataclass(frozen=True, slots=True)
class Job:
    """A line of the table in scenarios.py. `needs_private` jobs are left out with ``--url``."""

    name: str
    play: Callable[[Run], Awaitable[Table]]
    steps: Callable[[Run], int]  # how often it calls Plan.on_turn
    needs_private: bool = False
