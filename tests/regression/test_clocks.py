"""Clocks of servers that are set back, ahead, or differ: fences rise, and the difference is told."""

from __future__ import annotations

import time

import pytest

from fastdedup import Dedup
from fastdedup.events import ClockSkew, Event
from fastdedup.stores.base import TimedStore
from fastdedup.stores.redis.cluster.slots import slot_of
from fastdedup.stores.redis.former_clock import FormerClock
from fastdedup.stores.redis.scripts import CallHead

from ..fixtures import fixture_of
from ..servers import RedisServer
from ..stepping import SteppingClock, SteppingServer, clock_us
from ..topologies import ClusterGroup, Member
from ..waiting import wait_until

# A key's fence rises also where the server's clock was set back: an expired or forgotten key got a lower
# one.


HOUR_US = 3_600_000_000


stepping = fixture_of(SteppingServer)


async def test_the_fence_of_a_forgotten_key_rises_over_a_step(stepping: SteppingServer) -> None:
    """Claim, forget, set the clock back by an hour, claim again."""
    async with Dedup(stepping.url, namespace="t") as dedup:
        first = await dedup.claim("k", lease=60)
        await dedup.forget("k")
        stepping.set_back(3600)
        assert clock_us(stepping) < first.fence - HOUR_US // 2
        second = await dedup.claim("k", lease=60)
        await dedup.forget("k")
        third = await dedup.claim("k", lease=60)
        assert first.fence < second.fence < third.fence
        assert third.fence - first.fence < HOUR_US


async def test_the_fence_of_an_expired_key_rises_over_a_step(stepping: SteppingServer) -> None:
    """Expiry leaves no memory of the fence. The lock's record lives as long as its lease."""
    async with Dedup(stepping.url, namespace="t") as dedup:
        async with dedup.lock("k", lease=0.05, wait=5.0) as first:
            pass
        stepping.set_back(3600)
        with stepping.client() as raw:
            raw.flushdb()
        async with dedup.lock("k", lease=5.0, wait=5.0) as second:
            assert second.fence > first.fence


async def test_leases_follow_the_servers_clock_after_a_step(stepping: SteppingServer) -> None:
    """A floor must not stop the time: a lease that was claimed after the step ends when it should."""
    async with Dedup(stepping.url, namespace="t") as dedup:
        await dedup.claim("before", lease=60)
        stepping.set_back(3600)
        await dedup.claim("k", owner="dead", lease=0.05)
        async with dedup.claim("k", wait=5.0) as claim:
            assert claim.acquired
            assert claim.attempt == 2


async def test_gates_of_one_process_do_not_share_a_floor(stepping: SteppingServer) -> None:
    """What remains open: a client that has not seen the later time."""
    async with Dedup(stepping.url, namespace="t") as one:
        first = await one.claim("k", lease=60)
        await one.forget("k")
        stepping.set_back(3600)
        async with Dedup(stepping.url, namespace="t") as other:
            assert (await other.claim("k", lease=60)).fence < first.fence


async def test_a_store_tells_the_time_of_its_server(redis_url: str) -> None:
    async with Dedup(redis_url, namespace="t") as dedup:
        store = dedup.gate.connection.store
        assert isinstance(store, TimedStore)
        claim = await dedup.claim("k", lease=60)
        assert store.time_us >= claim.fence


@pytest.mark.parametrize("ahead", [2 * 24 * HOUR_US, 2**52])
async def test_no_records_fence_raises_the_floor_by_more_than_a_day(
    ahead: int, redis_url: str, redis_server: RedisServer
) -> None:
    """A poisoned one would take all later fences with it."""
    fence = clock_us(redis_server) + ahead
    record = b"\1P" + fence.to_bytes(7, "big") + bytes(5) + b"\1\0\1\0" + b"0123456789"
    async with Dedup(redis_url, namespace="t") as dedup:
        with redis_server.client() as raw:
            raw.set("t:=bad", record, px=60_000)
        taken = await dedup.claim("bad", lease=60)
        assert taken.fence == fence + 1
        assert (await dedup.claim("good", lease=60)).fence < fence


def test_a_server_far_in_the_future_does_not_raise_the_floor() -> None:
    head = CallHead()
    head.saw([2**55], [])
    assert head.latest_us == 0


def test_a_stepping_servers_clock_is_set_back(stepping: SteppingServer) -> None:
    """Else the tests above would test nothing."""
    before = clock_us(stepping)
    stepping.set_back(3600)
    assert before - HOUR_US <= clock_us(stepping) < before


# A slot moved to a node whose clock was behind, and the fences of its forgotten keys fell. Another client
# had not seen the faster node's latest time, only the time at which it had connected there.


SECONDS = 10.0
KEYS = [f"{{k}}{number}" for number in range(300)]


class SkewedGroup(ClusterGroup):
    """Three primaries and three replicas. The clock of a primary is behind, that of another's replica is ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.behind, self.ahead = self.members[1], self.members[3]
        for member, seconds in ((self.behind, SECONDS), (self.ahead, -SECONDS)):
            clock = SteppingClock(member.folder)
            clock.set_back(seconds)
            member.env = clock.env


group = fixture_of(SkewedGroup, scope="module")


@pytest.mark.parametrize("claimed_by_another", [True, False], ids=["another gate", "the same gate"])
async def test_the_fence_rises_as_a_slot_moves_to_a_slow_node(
    claimed_by_another: bool, group: SkewedGroup
) -> None:
    slot = slot_of(b"{k}")
    source = next(member for member in group.primaries() if member is not group.behind)
    if group.owner(slot) is not source:
        group.migrate_slot(slot, source)
    async with Dedup(group.url, namespace="t") as gate, Dedup(group.url, namespace="t") as other:
        claimant = other if claimed_by_another else gate
        before = await claimant.claim_many(KEYS)
        for key in KEYS:
            await claimant.forget(key)
        group.migrate_slot(slot, group.behind)
        after = await gate.claim_many(KEYS)
        assert all(late.fence > early.fence for early, late in zip(before, after, strict=True))


async def test_a_node_whose_clock_is_off_is_an_event(group: SkewedGroup) -> None:
    """A primary's, and that of a replica, which nobody has asked for a key yet."""
    seen: list[Event] = []

    def skews() -> dict[str, float]:
        return {event.store: event.offset_seconds for event in seen if isinstance(event, ClockSkew)}

    async with Dedup(group.url, namespace="t", lease=30.0, on_event=seen.append):
        await wait_until(lambda: len(skews()) == 2, description="both clocks are reported")
    assert skews() == {
        name_of(group.behind): pytest.approx(-SECONDS, abs=0.5),
        name_of(group.ahead): pytest.approx(SECONDS, abs=0.5),
    }


async def test_a_clock_may_differ_by_a_tenth_of_the_lease(group: SkewedGroup) -> None:
    seen: list[Event] = []
    async with Dedup(group.url, namespace="t", lease=SECONDS * 11, on_event=seen.append) as gate:
        clocks = gate.gate.connection.store._clocks  # type: ignore[attr-defined]
        await wait_until(lambda: clocks._timer, description="all clocks are read")
    assert not [event for event in seen if isinstance(event, ClockSkew)]


def name_of(member: Member) -> str:
    host, port = member.address
    return f"Redis at {host}:{port}"


# A failover to a server whose clock was off went unnoticed where the store was no Cluster: it ends leases
# early.


server = fixture_of(SteppingServer, scope="module")


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
        [(dedup.gate.connection.store.name, pytest.approx(SECONDS, abs=0.5))] if reported else []
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
