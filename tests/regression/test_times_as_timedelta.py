"""Seconds and timedelta mean the same, wherever a length of time is taken."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fastdedup import ConfigError, Dedup, InProgressError, Outcome, Reject, business_key

from ..stores import Backend

MINUTE = timedelta(minutes=1)


async def test_every_time_of_a_gate_may_be_a_timedelta(backend: Backend) -> None:
    times = dict.fromkeys(("lease", "ttl", "failure_ttl", "token_ttl"), MINUTE)
    async with backend.make(**times, known_duplicates=timedelta(seconds=1)) as dedup:
        assert dedup.settings.lease == 60.0
        claim = await dedup.claim("a")
        record = await dedup.get("a")
        assert record is not None
        assert record.lease is not None
        assert 0 < record.lease <= 60.0 < record.ttl <= 120.0
        await claim.fail("sold out")
        record = await dedup.get("a")
        assert record is not None
        assert record.ttl <= 60.0
        token = await dedup.tokens.issue("user:7", ttl=MINUTE)
        assert (await dedup.tokens.redeem(token, "user:7", lease=MINUTE, ttl=MINUTE)).acquired
        scope = dedup.scoped("x", lease=timedelta(seconds=2), ttl=MINUTE)
        assert (await scope.claim("a")).lease == pytest.approx(2.0, abs=0.5)


async def test_every_time_of_a_call_may_be_a_timedelta(backend: Backend) -> None:
    async with backend.make() as dedup:
        claim = await dedup.claim("a", lease=timedelta(seconds=5), ttl=MINUTE, wait=timedelta(seconds=1))
        await claim.renew(timedelta(seconds=9))
        assert (await dedup.claim("a", wait=timedelta(milliseconds=1))).outcome is Outcome.IN_PROGRESS
        await claim.complete("done", ttl=MINUTE)
        assert (await dedup.claim("a", wait=timedelta(0))).result == "done"
        async with dedup.lock("l", lease=MINUTE, wait=timedelta(0)):
            with pytest.raises(InProgressError):
                await dedup.lock("l", lease=MINUTE, wait=timedelta(milliseconds=1)).__aenter__()
        orders = dedup.machine("o", initial="a", transitions={"a": ("b",), "b": ()}, ttl=timedelta(days=1))
        assert (await orders.transition("1", to="b")).changed


def test_settings_without_a_gate_take_one_too() -> None:
    Reject(retry_after=MINUTE)
    assert business_key("a", window=MINUTE, at=61) == business_key("a", window=60.0, at=61)
    Dedup(timeout=timedelta(milliseconds=250))


@pytest.mark.parametrize("bad", [timedelta(0), timedelta(seconds=-1), timedelta.max])
def test_a_timedelta_is_held_to_the_same_bounds(bad: timedelta) -> None:
    with pytest.raises(ConfigError, match=r"lease must be between .* got timedelta"):
        Dedup(lease=bad)
