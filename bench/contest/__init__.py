"""The core of ``bench/``: contestants, scenarios, and the rounds in which they play.

`contest` is the main path. Every contestant plays a scenario on one Redis in one process. Rounds are interleaved, so
that noise affects all contestants alike, and a figure is the median of its rounds. Compare the ratios within a run:
absolute figures differ between machines. ``fastdedup bench`` does the same in small, on a user's own Redis: what both
need is in its file.

To add a contestant: write an async context manager that yields `Ops`, and add it to a table of contestants.
"""

from fastdedup.cli.bench import GC_THRESHOLDS, LEASE_MS, ClaimedTwiceError, Row, collector, fresh_keys, reason

from .contestants import (
    BASELINE,
    CONTESTANTS,
    HOT,
    OURS,
    TIMEOUT,
    as_expected,
    our_dedup,
    ours,
    redis_client,
    result_of,
)
from .model import (
    Contestant,
    Ops,
    Plan,
    Scenario,
    Setting,
    Spent,
    Table,
    Turn,
    WrongReplayError,
)
from .rounds import P99, SCENARIOS, contest, turns
from .text import cells
from .turn import TURN_LIMIT, drive

__all__ = [
    # a run
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
    "TIMEOUT",
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
