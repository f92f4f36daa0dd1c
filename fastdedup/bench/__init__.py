"""Measures fastdedup and redis-py on your own Redis, for ``fastdedup bench --url …``; the core of ``bench/``.

`side_by_side` is the main path. Every contestant plays every scenario on one Redis in one process. Rounds are
interleaved, so that noise affects all contestants alike, and a figure is the median of its rounds. Compare the
ratios within a run: absolute figures differ between machines.

To add a contestant: write an async context manager that yields `Ops`, and add it to a table of contestants.
"""

from .contestants import (
    BASELINE,
    CONTESTANTS,
    HOT,
    LEASE_MS,
    OURS,
    as_expected,
    our_dedup,
    ours,
    redis_client,
    result_of,
)
from .model import (
    ClaimedTwiceError,
    Contestant,
    Ops,
    Plan,
    Row,
    Scenario,
    Setting,
    Spent,
    Table,
    Turn,
    WrongReplayError,
)
from .rounds import P99, SCENARIOS, contest, side_by_side, turns
from .text import cells, reason
from .turn import GC_THRESHOLDS, TURN_LIMIT, collector, drive, fresh_keys

__all__ = [
    # a run
    "side_by_side",
    "contest",
    "turns",
    "SCENARIOS",
    "P99",
    # contestants
    "CONTESTANTS",
    "BASELINE",
    "OURS",
    "ours",
    "our_dedup",
    "redis_client",
    "result_of",
    "as_expected",
    "HOT",
    "LEASE_MS",
    # parts of a run
    "Plan",
    "Scenario",
    "Contestant",
    "Setting",
    "Spent",
    "Ops",
    "Turn",
    "Table",
    "Row",
    "ClaimedTwiceError",
    "WrongReplayError",
    # one turn
    "drive",
    "fresh_keys",
    "collector",
    "GC_THRESHOLDS",
    "TURN_LIMIT",
    # as text
    "cells",
    "reason",
]
