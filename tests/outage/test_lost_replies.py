"""Unknown outcomes: Redis acted, its reply was lost. The caller does not notice, or can safely ask again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fastdedup import Dedup, Outcome, UnavailableError

from ..proxy import proxied
from ..servers import RedisServer
from ..waiting import answered

TIMEOUT = 5.0
"""Seconds: generous, so that only what the proxy does is an outage."""
SHORT = 0.2
"""Seconds, where a reply is to come too late."""


def gate(url: str, **options: Any) -> Dedup:
    """Asks the store each time: what this process knows would hide what the store says."""
    return Dedup(url, **{"timeout": TIMEOUT, "known_duplicates": 0.0, **options})


# The model simulates each way of losing a reply, and clients that race meanwhile.


async def test_a_late_reply_is_not_taken_for_the_next_ones(redis_url: str, redis_server: RedisServer) -> None:
    async with proxied(redis_server) as proxy, gate(proxy.url, timeout=SHORT) as dedup:
        keys = [f"key-{n}" for n in range(40)]
        async with gate(redis_url) as direct:
            for claim in await direct.claim_many(keys):
                await claim.complete(claim.key)
        for late in keys[:3]:
            proxy.hold()
            with pytest.raises(UnavailableError):
                await dedup.claim(late)
            proxy.forward()
            for key in keys[3:]:
                claim = await answered(lambda key=key: dedup.claim(key))  # type: ignore[misc]
                assert claim.result == key


async def test_200_claims_whose_replies_were_lost_are_200_winners(
    redis_url: str, redis_server: RedisServer
) -> None:
    keys = [f"key-{n}" for n in range(200)]
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup, gate(redis_url) as direct:
        proxy.lose("claim")
        claims = await asyncio.gather(*(dedup.claim(key) for key in keys))
        assert [claim.key for claim in claims] == keys
        assert {(claim.outcome, claim.attempt) for claim in claims} == {(Outcome.ACQUIRED, 1)}
        assert {claim.outcome for claim in await direct.claim_many(keys)} == {Outcome.IN_PROGRESS}
        proxy.lose("settle")
        await asyncio.gather(*(claim.complete(claim.key) for claim in claims))
        assert [claim.result for claim in await direct.claim_many(keys)] == keys
        assert proxy.lost == {"claim": 1, "settle": 1}
