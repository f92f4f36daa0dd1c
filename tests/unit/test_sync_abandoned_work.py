"""`fastdedup.sync`: records, holders, and a check of abandoned work in the caller's thread."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fastdedup import ConfigError, Outcome, Resolution, State, Takeover
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


def test_other_answers_and_errors_of_the_check(dedup: Dedup) -> None:
    def broken(takeover: Takeover) -> Resolution:
        raise OSError("away")

    abandoned(dedup, "k")
    with pytest.raises(OSError, match="away"):
        dedup.claim("k", resolve=broken)
    claim = dedup.claim("k", resolve=lambda takeover: Resolution.unknown(ValueError("lost")))
    assert (claim.outcome, claim.error) == (Outcome.FAILED, {"type": "ValueError", "message": "lost"})
    abandoned(dedup, "open")
    with dedup.claim("open", resolve=lambda takeover: Resolution.not_done()) as claim:
        assert claim.acquired
        assert claim.downstream("a") != claim.downstream("b")

    async def wrong(takeover: Takeover) -> Resolution:
        return Resolution.done()

    with pytest.raises(ConfigError, match="async"):
        dedup.claim("k", resolve=wrong)  # type: ignore[arg-type]


def test_once_asks_and_records_are_listed(dedup: Dedup) -> None:
    @dedup.once(key=lambda order: order, resolve=lambda takeover: Resolution.done("before"))
    def pay(order: str) -> str:
        return "now"

    abandoned(dedup, "k")
    assert [pay("k"), pay("new")] == ["before", "now"]
    found = dedup.records(prefix="k", state=State.SUCCEEDED)
    assert [(record.key, found.cursor) for record in found.records] == [("k", None)]
    assert dedup.forget("k", reason="a test") is True
    machine = dedup.machine("m", initial="a", transitions={"a": ("b",), "b": ()})
    machine.transition("1", to="b")
    assert [machine.forget("1"), machine.forget("1"), machine.get("1")] == [True, False, ("a", 0)]
