"""A key's fence rises also where the server's clock was set back: an expired or forgotten key got a lower one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fastdedup import Dedup
from fastdedup.stores.base import TimedStore
from fastdedup.stores.redis.scripts import CallHead

from ..servers import RedisServer
from ..stepping import SteppingServer, clock_us

HOUR_US = 3_600_000_000


@pytest.fixture
def stepping() -> Iterator[SteppingServer]:
    server = SteppingServer()
    try:
        server.start()
        yield server
    finally:
        server.stop()


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
        store = dedup._namespace.connection.store
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
