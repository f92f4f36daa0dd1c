"""`fastdedup.sync`: a check of abandoned work in the caller's thread. `tests/contract/` has the rest."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fastdedup import ConfigError, Outcome, Resolution, Takeover
from fastdedup.sync import Dedup

from ..fixtures import fixture_of
from ..killable import until
from ..waiting import renewals

dedup = fixture_of(Dedup, "memory://", lease=0.3, holder="sync")


def lease(dedup: Dedup, key: str) -> float:
    """Return the seconds that are left of the lease of a key."""
    record = dedup.get(key)
    assert record is not None
    assert record.lease is not None
    return record.lease


def abandoned(dedup: Dedup, key: str) -> None:
    """Leave a claim behind, and return when its lease has ended."""
    dedup.claim(key)
    until(lambda: lease(dedup, key) < -0.002, "its lease has ended")


def test_the_check_runs_in_the_callers_thread(dedup: Dedup) -> None:
    heard: list[Any] = []
    seen: list[float] = []

    def check(takeover: Takeover) -> Resolution:
        heard.append((takeover.attempt, str(takeover.last_holder)[:5], threading.current_thread()))
        until(lambda: renewals(seen, lease(dedup, "k")) >= 7, "it is renewed: more than two leases are over")
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
