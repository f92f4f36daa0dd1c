"""Results of 60,000 keys were still in memory seconds after Redis had been flushed."""

from __future__ import annotations

import asyncio
import gc

import pytest

from fastdedup import Dedup, Outcome
from fastdedup.core import recent
from fastdedup.core.calls import KnownCall

from ..idle import IdleTime
from ..servers import RedisServer
from ..waiting import wait_until

KEYS = 2_000
AGE = 0.5
"""Seconds that a success is known for; all are given back within a second more."""


def remembered() -> int:
    """Answers that this process still holds."""
    gc.collect()
    return sum(type(each) is KnownCall for each in gc.get_objects())


async def succeed(dedup: Dedup, keys: range, result: str) -> None:
    """Complete the keys, and hear of each from the store."""
    for start in range(keys.start, keys.stop, 2000):
        part = [str(number) for number in range(start, min(start + 2000, keys.stop))]
        claims = await dedup.claim_many(part)
        await asyncio.gather(*[claim.complete(result) for claim in claims if claim.acquired])
        for claim in await dedup.claim_many(part):
            assert claim.outcome is Outcome.SUCCEEDED


@pytest.fixture(autouse=True)
def _small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the true ones, which took each test 10 s to fill."""
    monkeypatch.setattr(recent, "MAX_ENTRIES", recent.MAX_ENTRIES // 10)
    monkeypatch.setattr(recent, "MAX_BYTES", recent.MAX_BYTES // 10)


@pytest.mark.no_cover
async def test_memory_is_given_back_where_nothing_more_is_asked(
    redis_url: str, redis_server: RedisServer
) -> None:
    before = remembered()  # other tests of this process may have left some
    async with Dedup(redis_url, namespace="t", timeout=5.0, known_duplicates=AGE) as dedup:
        await succeed(dedup, range(KEYS), "x" * 200)
        known = dedup.gate.connections.common.recent
        assert 0 < len(known) <= recent.MAX_ENTRIES
        with redis_server.client() as raw:
            raw.flushall()
        with IdleTime() as idle:
            await wait_until(lambda: not len(known), description="all is given back")
        assert idle.seconds < AGE + 1.0
        assert known.bytes == 0
        assert remembered() <= before


@pytest.mark.no_cover
async def test_the_gates_of_a_process_share_one_bound(redis_url: str) -> None:
    """Of entries as of bytes."""
    before = remembered()
    gates = [
        Dedup(redis_url, namespace=f"t{number}", timeout=5.0, known_duplicates=60) for number in range(3)
    ]
    for gate in gates:
        await gate.open()
    try:
        for gate in gates:
            await succeed(gate, range(600), "x" * 200)
        assert sum(len(gate.gate.connections.common.recent) for gate in gates) <= recent.MAX_ENTRIES
        for gate in gates:
            await succeed(gate, range(100_000, 100_100), "x" * 20_000)
        assert recent.bytes_held() <= recent.MAX_BYTES
    finally:
        for gate in gates:
            await gate.aclose()
    assert recent.bytes_held() == 0
    assert remembered() <= before
