"""When Redis is gone: a visible answer within the deadline, and recovery without a restart."""

from __future__ import annotations

import asyncio
import time

import pytest

from fastdedup import Dedup, UnavailableError
from fastdedup.model import BreakerState

from ..idle import IdleTime
from ..servers import RedisServer
from ..waiting import acquired, breaker_opens, cancel, wait_until


async def test_a_frozen_server_is_unavailable_at_the_deadline(own_redis: RedisServer) -> None:
    async with Dedup(own_redis.url, timeout=0.4) as dedup:
        await dedup.claim("before")
        own_redis.freeze()
        with IdleTime() as idle:
            answers = await asyncio.gather(
                *(dedup.claim(f"key-{n}") for n in range(5000)), return_exceptions=True
            )
        assert {type(answer) for answer in answers} == {UnavailableError}
        assert idle.seconds < 0.9, "the queue behind the frozen batches does not wait in turn"
        # Nothing is left, but for a look at what was given up.
        await wait_until(lambda: dedup.pending == 0, description="all is answered")
        own_redis.thaw()
        await acquired(dedup, "after", is_away=True)


async def test_a_killed_redis_is_refused_under_reject_within_the_deadline(own_redis: RedisServer) -> None:
    """UnavailableError that names the server, for every caller at once."""
    async with Dedup(own_redis.url, timeout=0.5) as dedup:
        await dedup.claim("before")
        own_redis.kill()
        answers = await asyncio.gather(*(dedup.claim(str(n)) for n in range(50)), return_exceptions=True)
    for error in answers:
        assert isinstance(error, UnavailableError)
        assert str(own_redis.socket) in str(error)
        assert error.retry_after > 0
        assert not error.unrecorded


async def test_a_store_that_is_back_is_found_by_a_loop_whose_callers_leave_it_no_time(
    own_redis: RedisServer,
) -> None:
    """They ask again and again, 5,000 of them: connecting takes more turns of such a loop than the timeout holds."""

    async def take_all_time() -> None:
        while True:
            ends = time.monotonic() + 0.1
            while time.monotonic() < ends:
                pass
            await asyncio.sleep(0)

    async with Dedup(own_redis.url, timeout=0.25) as dedup:
        await dedup.claim("before")
        with own_redis.frozen():
            await breaker_opens(dedup)
            callers = asyncio.create_task(take_all_time())
        await wait_until(
            lambda: dedup.breaker is BreakerState.CLOSED, description="the breaker closes", deadline=40.0
        )
        await cancel(callers)
        await acquired(dedup, "after", is_away=True)


@pytest.mark.parametrize("folder", ["login", "password"])
async def test_a_server_that_is_down_is_no_wrong_password_whatever_its_name(folder: str) -> None:
    """The error's kind decides, not a word that happens to stand in its text."""
    async with Dedup(f"unix:///nonexistent/{folder}/redis.sock", timeout=0.5) as dedup:
        with pytest.raises(UnavailableError):
            await dedup.claim("k")


# What docs/redis.md says of a full Redis: it refuses, keeps what is recorded, and goes on when there is room.


async def test_a_full_redis_refuses_and_forgets_nothing() -> None:
    with RedisServer("--maxmemory-policy", "noeviction") as server:
        async with Dedup(server.url, namespace="shop", timeout=1.5, known_duplicates=0) as dedup:
            clicks = dedup.ledger("clicks", window=60.0, capacity=1000)
            assert await clicks.first("i")
            await (await dedup.claim("done")).complete({"order": 1})
            held, brief = await dedup.claim("held"), await dedup.claim("brief", lease=1.5)
            with server.client() as raw:
                raw.config_set("maxmemory", 100_000)
            assert not await clicks.first("i"), "an id that is remembered needs no write"
            for refused in (dedup.claim("done"), brief.complete({"order": 2}), dedup.claim("new")):
                with pytest.raises(UnavailableError, match="out of memory"):
                    await refused
            await wait_until(lambda: dedup.breaker is BreakerState.OPEN, description="the breaker opens")
            with pytest.raises(UnavailableError, match="breaker open"):
                await clicks.first("i")
            with server.client() as raw:
                raw.config_set("maxmemory", 0)
            await wait_until(lambda: dedup.breaker is BreakerState.CLOSED, description="there is room again")
            assert (await dedup.claim("done")).replay() == {"order": 1}
            await held.complete({"order": 2})
            assert (await dedup.claim("held")).replay() == {"order": 2}
