"""`Ledger.forget` gave a bucket without an expiry one of a millisecond, and with it all of its ids."""

from __future__ import annotations

from fastdedup import Dedup

from ..servers import RedisServer


async def test_a_bucket_without_expiry_keeps_its_other_ids(redis_url: str, redis_server: RedisServer) -> None:
    """As PERSIST leaves it, or a tool that copies keys without their expiry."""
    raw = redis_server.client()
    async with Dedup(redis_url, namespace="t", timeout=2.0) as dedup:
        ledger = dedup.ledger("orders", window=3600, capacity=100)
        await ledger.first_many(range(50))
        (bucket,) = raw.keys("t:~orders{*}")
        assert raw.persist(bucket)
        assert await ledger.forget(7) is True
        assert raw.pttl(bucket) == -1
        assert [await ledger.seen(each) for each in (6, 7, 8)] == [True, False, True]
        raw.delete(bucket)  # a test leaves no key without a TTL
