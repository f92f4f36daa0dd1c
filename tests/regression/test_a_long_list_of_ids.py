"""`first_many` asked for 100,000 ids at once: they timed out, opened the breaker, and most were never taken back."""

from __future__ import annotations

import pytest

from fastdedup import Dedup, UsageError


async def test_a_list_has_at_most_as_many_ids_as_can_be_taken_back(redis_url: str) -> None:
    async with Dedup(redis_url, namespace="t", timeout=2.0) as dedup:
        ledger = dedup.ledger("orders", window=3600, capacity=10_000)
        with pytest.raises(UsageError, match="at most 10000 ids, got 10001"):
            await ledger.first_many(range(10_001))
        assert await ledger.first_many(range(2_001)) == [True] * 2_001  # asked for in two parts
        assert await ledger.first_many([*range(2_001), "new"]) == [False] * 2_001 + [True]
