"""A failover to a server whose clock was off went unnoticed where the store was no Cluster: it ends leases early."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from fastdedup import Dedup
from fastdedup.events import ClockSkew, Event
from fastdedup.stores.redis.former_clock import FormerClock

from ..stepping import SteppingServer

SECONDS = 10.0


@pytest.fixture(scope="module")
def server() -> Iterator[SteppingServer]:
    server = SteppingServer()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.mark.parametrize(("lease", "reported"), [(30.0, True), (SECONDS * 11, False)])
async def test_a_clock_that_is_off_after_a_failover_is_an_event(
    server: SteppingServer, lease: float, reported: bool
) -> None:
    """The next connection leads to a server whose clock is ahead by less, or by more, than a tenth of the lease."""
    seen: list[Event] = []
    server.clock.set_back(0.0)
    async with Dedup(server.url, namespace="t", lease=lease, timeout=2.0, on_event=seen.append) as dedup:
        await dedup.claim("before")
        server.clock.set_back(-SECONDS)
        with server.client() as raw:
            raw.client_kill_filter(_type="normal")
        await dedup.claim("after")
        await dedup.claim("later")
    skews = [(event.store, event.offset_seconds) for event in seen if isinstance(event, ClockSkew)]
    assert skews == (
        [(dedup._namespace.connection.store.name, pytest.approx(SECONDS, abs=0.5))] if reported else []
    )  # type: ignore[attr-defined]


@pytest.mark.parametrize("own", ["monotonic", "time"])
def test_a_change_of_the_own_clock_is_no_skew(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine slept, so its monotonic clock stood still; or somebody has set its wall clock."""
    reported: list[float] = []
    clock = FormerClock(0.25, reported.append)
    clock.heard(round(time.time() * 1_000_000))
    real = getattr(time, own)
    monkeypatch.setattr(time, own, lambda: real() - 3600.0)
    now_us = round((time.time() if own == "monotonic" else time.time() + 3600.0) * 1_000_000)
    clock.heard(now_us)
    assert not reported
    clock.heard(now_us + 10_000_000)
    assert reported == [pytest.approx(10.0, abs=0.1)]
