"""What goes wrong with `SET key value NX EX`: the README's three stories, and how each ends with a claim.

A story has two callers of one key. No test waits for a key to expire: if a story needs that, the test deletes it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from fastdedup import ClaimLostError, Dedup

DAY = 86_400


@asynccontextmanager
async def both(url: str) -> AsyncIterator[tuple[Redis, Dedup]]:
    """A client for commands by hand, and a gate, on one server."""
    async with Redis.from_url(url) as client, Dedup(url, namespace="shop") as dedup:
        yield client, dedup


async def test_a_lost_reply(redis_url: str) -> None:
    """The winner asks again, because its reply was lost: by hand it gets "taken", here its own claim."""
    async with both(redis_url) as (redis, dedup):
        await redis.set("order:42", "1", nx=True, ex=DAY)  # the winner does not get this reply
        assert await redis.set("order:42", "1", nx=True, ex=DAY) is None

        first = await dedup.claim("order:42", owner="worker-7")
        again = await dedup.claim("order:42", owner="worker-7")
        assert again.acquired
        assert again.fence == first.fence


async def test_a_dead_owner(redis_url: str) -> None:
    """The owner dies before it has done the work: by hand its key stays for a day, here for the lease."""
    async with both(redis_url) as (redis, dedup):
        assert await redis.set("order:42", "1", nx=True, ex=DAY)
        assert await redis.set("order:42", "1", nx=True, ex=DAY) is None
        assert await redis.ttl("order:42") > DAY - 60

        await dedup.claim("order:42", lease=0.1)
        retry = await dedup.claim("order:42", wait=30.0)
        assert retry.acquired
        assert retry.attempt == 2


async def test_a_slow_owner(redis_url: str) -> None:
    """A slow owner ends its work when the next owner is at work: by hand it frees the next owner's key."""
    async with both(redis_url) as (redis, dedup):
        assert await redis.set("order:42", "slow", nx=True, ex=30)
        await redis.delete("order:42")  # the key expires
        assert await redis.set("order:42", "next", nx=True, ex=30)
        await redis.delete("order:42")  # the slow owner ends its work
        assert await redis.set("order:42", "third", nx=True, ex=30)  # works beside the next owner

        slow = await dedup.claim("order:42", lease=0.1)
        following = await dedup.claim("order:42", wait=30.0)
        with pytest.raises(ClaimLostError):
            await slow.complete("slow")
        third = await dedup.claim("order:42")
        assert not third.acquired
        await following.complete("next")
        assert (await dedup.claim("order:42")).replay() == "next"
