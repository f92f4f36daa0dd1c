"""`fastdedup.sync`: a check of abandoned work in the caller's thread. `tests/contract/` has the rest."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fastdedup import ConfigError, Outcome, Resolution, Takeover
from fastdedup.sync import Dedup

from ..fixtures import fixture_of

dedup = fixture_of(Dedup, "memory://", lease=0.3, holder="sync")


def abandoned(dedup: Dedup, key: str) -> None:
    """Leave a claim behind, and return when its lease has ended."""
    dedup.claim(key)
    over = threading.Event()
    while not over.wait(0.005):
        record = dedup.get(key)
        if record is not None and record.lease is not None and record.lease < -0.002:
            over.set()


def test_the_check_runs_in_the_callers_thread(dedup: Dedup) -> None:
    heard: list[Any] = []

    def check(takeover: Takeover) -> Resolution:
        heard.append((takeover.attempt, str(takeover.last_holder)[:5], threading.current_thread()))
        threading.Event().wait(0.7)  # longer than the lease, which is renewed
        return Resolution.done({"n": 7})

    abandoned(dedup, "k")
    claim = dedup.claim("k", resolve=check)
    assert (claim.outcome, claim.result) == (Outcome.SUCCEEDED, {"n": 7})
    assert heard == [(2, "sync@", threading.current_thread())]
    assert dedup.claim("k").result == {"n": 7}


def test_a_check_that_is_async_is_refused(dedup: Dedup) -> None:
    async def wrong(takeover: Takeover) -> Resolution:
        return Resolution.done()

    with pytest.raises(ConfigError, match="async"):
        dedup.claim("k", resolve=wrong)  # type: ignore[arg-type]
