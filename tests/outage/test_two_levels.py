"""Claims whose success a ledger remembers, while replies are lost and while Redis is away."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from fastdedup import Dedup, LocalLRU, Outcome, UnavailableError

from ..proxy import Fate, proxied
from ..servers import RedisServer

WEEK = timedelta(days=7)


def gate(url: str, **options: Any) -> Dedup:
    return Dedup(url, **{"namespace": "t", "timeout": 5.0, **options})


async def test_lost_replies_are_not_noticed(redis_url: str, redis_server: RedisServer) -> None:
    """Of the claim, and of its completion; also where the server has lost the scripts."""
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup:
        ledger = dedup.ledger("done", window=WEEK, capacity=1000)
        await ledger.seen("ledger is founded")
        with redis_server.client() as raw:
            raw.script_flush()
            proxy.lose("claim_remembered")
            claim = await dedup.claim("k", remember=ledger)
            assert (claim.outcome, claim.attempt) == (Outcome.ACQUIRED, 1)
            raw.script_flush()
            proxy.lose("settle_remembered", 1)
            await claim.complete("done")
        assert proxy.lost["claim_remembered"] == proxy.lost["settle_remembered"] == 1
        assert (await dedup.claim("k", remember=ledger)).result == "done"
        assert (await ledger.stats()).ids == 1


async def test_local_lru_refuses_what_only_the_store_can_say(
    redis_url: str, redis_server: RedisServer
) -> None:
    """It does not know which ids a ledger remembers, and a claim of its own would do the work again."""
    async with (
        proxied(redis_server) as proxy,
        gate(proxy.url, timeout=0.2, on_unavailable=LocalLRU()) as dedup,
    ):
        ledger = dedup.ledger("done", window=WEEK, capacity=1000)
        claim = await dedup.claim("k", remember=ledger)
        proxy.follow(lambda name: Fate.CUT)
        proxy.cut()
        assert (await dedup.claim("plain")).degraded
        for key in ("k", "new"):
            with pytest.raises(UnavailableError, match="only the store can say") as refused:
                await dedup.claim(key, remember=ledger)
            assert refused.value.owner
        with pytest.raises(UnavailableError):
            await claim.complete(within=0.0)
        assert not await asyncio.wait_for(_is_remembered(redis_url, "k"), 5.0)
        proxy.forward()
        await claim.complete()
        assert await _is_remembered(redis_url, "k")


async def _is_remembered(url: str, key: str) -> bool:
    async with gate(url) as dedup:
        return await dedup.ledger("done", window=WEEK, capacity=1000).seen(key)
