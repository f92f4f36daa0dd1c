"""Records as small as promised: at most 165 bytes of Redis memory for a live one without payload."""

from __future__ import annotations

import pytest

from fastdedup import Dedup

from ..servers import RedisServer

RECORDS = 10_000
LIMIT = 165


@pytest.mark.no_cover
@pytest.mark.parametrize("fingerprint", [None, b"0123456789abcdef"])
@pytest.mark.parametrize(
    "key", ["key-{}", "https://shop.example/orders/0f8fad5b-d9cb-469f-a165-70867728950e/{}"]
)
async def test_a_live_record_takes_at_most_165_bytes(
    redis_url: str, redis_server: RedisServer, key: str, fingerprint: bytes | None
) -> None:
    async with Dedup(redis_url, namespace="shop", timeout=10) as dedup:
        with redis_server.client() as raw:
            before = raw.info("memory")["used_memory_dataset"]
            marks = None if fingerprint is None else [fingerprint] * RECORDS
            claims = await dedup.claim_many([key.format(n) for n in range(RECORDS)], fingerprints=marks)
            assert all(claim.acquired for claim in claims)
            with raw.pipeline(transaction=False) as pipe:
                for name in raw.scan_iter(count=1000):
                    pipe.memory_usage(name)
                usages = pipe.execute()
            assert len(usages) == RECORDS
            assert max(usages) <= LIMIT
            # What MEMORY USAGE leaves out: the entry in the table of expiries, both tables' slots.
            grown = raw.info("memory")["used_memory_dataset"] - before
            assert grown / RECORDS <= LIMIT + 40
