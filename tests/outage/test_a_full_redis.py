"""What docs/redis.md says of a full Redis: it refuses, keeps what is recorded, and goes on when there is room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fastdedup import Dedup, UnavailableError
from fastdedup.model import BreakerState

from ..servers import RedisServer

WaitUntil = Callable[..., Any]


async def test_a_full_redis_refuses_and_forgets_nothing(wait_until: WaitUntil) -> None:
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
