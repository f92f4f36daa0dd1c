"""`fastdedup.sync`: a check of abandoned work in the caller's thread. `tests/contract/` has the rest."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from fastdedup import ConfigError, Outcome, Resolution, Takeover
from fastdedup.sync import Dedup

from ..fixtures import fixture_of
from ..killable import until

dedup = fixture_of(Dedup, "memory://", lease=0.3, holder="sync")


def abandoned(dedup: Dedup, key: str) -> None:
    """Leave a claim behind, and return when its lease has ended."""
    dedup.claim(key)

    def is_over() -> bool:
        record = dedup.get(key)
        return record is not None and record.lease is not None and record.lease < -0.002

    until(is_over, "its lease has ended")


def test_the_check_runs_in_the_callers_thread(dedup: Dedup) -> None:
    heard: list[Any] = []

    def check(takeover: Takeover) -> Resolution:
        heard.append((takeover.attempt, str(takeover.last_holder)[:5], threading.current_thread()))
        time.sleep(0.7)  # longer than the lease, which is renewed
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
