"""Gates that share a `LocalLRU`: one that closed in an outage reported records as forgotten that were not."""

from __future__ import annotations

from fastdedup import LocalLRU, Outcome
from fastdedup.events import Unreplayed

from ..heard import HeardGate
from ..servers import RedisServer
from ..waiting import wait_until


async def test_a_gate_that_closes_leaves_its_records_to_another_one(own_redis: RedisServer) -> None:
    """The gate that stays open never answered by its policy, so before it left the records in the journal."""
    policy = LocalLRU()
    own_redis.kill()
    async with HeardGate(own_redis.url, namespace="shop", on_unavailable=policy) as open_gate:
        async with HeardGate(own_redis.url, namespace="shop", on_unavailable=policy) as closing:
            claim = await closing.dedup.claim("k")
            await claim.complete("done")
            assert await closing.dedup.ledger("ids", window=60.0, capacity=100).first("id")
        assert policy.lines == 2
        own_redis.start()
        await wait_until(lambda: not policy.lines, description="the records are in the store")
        assert closing.of(Unreplayed) == open_gate.of(Unreplayed) == []
    async with HeardGate(own_redis.url, namespace="shop") as later:
        again = await later.dedup.claim("k")
        assert (again.outcome, again.result) == (Outcome.SUCCEEDED, "done")


async def test_the_last_gate_reports_what_the_store_never_got(own_redis: RedisServer) -> None:
    policy = LocalLRU()
    own_redis.kill()
    last, first = (HeardGate(own_redis.url, namespace="shop", on_unavailable=policy) for _ in range(2))
    async with last, first:
        await (await first.dedup.claim("k")).complete("done")
    assert (len(first.of(Unreplayed)), len(last.of(Unreplayed))) == (0, 1)
