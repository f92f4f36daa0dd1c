"""How large the batches are that a sidecar sends to Redis."""

from __future__ import annotations

import asyncio

from fastdedup.sidecar.counters import Counters
from fastdedup.sidecar.service.config import Config
from fastdedup.sidecar.service.run import make_namespaces


async def test_forty_claims_of_one_moment_are_two_batches(redis_url: str) -> None:
    """A library's gate makes three of them, while Redis works on the first."""
    sizes: list[int] = []
    counters = Counters()
    counters.on_batch = sizes.append  # type: ignore[method-assign]
    namespaces = make_namespaces(Config(url=redis_url), counters, lambda event: None)
    async with namespaces.root as dedup:
        await asyncio.gather(*(dedup.claim(f"order:{number}") for number in range(40)))
    assert sizes == [32, 8]
