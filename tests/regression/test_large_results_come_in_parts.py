"""A batch of 256 claims brought 67 MB of results in one reply: the store seemed silent, and the breaker opened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastdedup import Dedup
from fastdedup.protocol.operations import ClaimOp, Code, Verb
from fastdedup.protocol.owners import draw_owner
from fastdedup.sidecar.namespaces import RawCodec
from fastdedup.stores.redis.verbs import load_scripts

from ..servers import RedisServer

RESULT = b"r" * 250_000
KEYS = [f"large {number}" for number in range(50)]


@pytest.fixture
def url(redis_server: RedisServer) -> Iterator[str]:
    yield redis_server.url
    with redis_server.client() as raw:
        raw.flushdb()


def gate(url: str) -> Dedup:
    return Dedup(url, namespace="parts", ttl=30.0, codec=RawCodec(), timeout=10.0)


async def complete(dedup: Dedup) -> None:
    for claim in await dedup.claim_many(KEYS):
        await claim.complete(RESULT)


async def test_each_claim_gets_its_result(url: str) -> None:
    """Also those beside them that are fresh, in progress, or named."""
    async with gate(url) as dedup:
        await complete(dedup)
        named = [dedup.claim(key, owner="me") for key in KEYS]
        calls = [*named, *(dedup.claim(key) for key in KEYS), dedup.claim("fresh"), dedup.claim("fresh")]
        claims = await asyncio.gather(*calls)
        assert {claim.outcome for claim in claims[:100]} == {"succeeded"}
        assert all(claim.result == RESULT for claim in claims[:100])
        assert [claim.outcome for claim in claims[100:]] == ["acquired", "in_progress"]


async def test_one_call_brings_some_megabytes(url: str, redis_server: RedisServer) -> None:
    async with gate(url) as dedup:
        await complete(dedup)
        claims = dedup._namespace.claims
        ops = [
            ClaimOp(claims.wire_of(key.encode()), dedup._namespace.claim_terms, draw_owner(), None)
            for key in KEYS
        ]
        script = load_scripts()[Verb.CLAIM]
        with redis_server.client() as raw:
            args = script.pack(ops)
            reply = raw.eval(script.text, len(ops), *[op.wire for op in ops], b"\0" * 7, 1 << 20, *args)
        codes = list(reply[2::3])
        assert sum(len(record) for record in reply[3::3]) < 5_000_000
        assert codes[0] == Code.SUCCEEDED
        assert codes[-1] == Code.AGAIN


async def test_a_claim_that_was_cancelled_meanwhile_is_dropped(
    url: str, wait_until: Callable[..., Any]
) -> None:
    async with gate(url) as dedup:
        await complete(dedup)
        calls = [dedup.claim(key, owner=f"o{number}") for number in range(4) for key in KEYS]
        tasks = [asyncio.create_task(call) for call in calls]
        engine = dedup._namespace.connection.engine
        assert engine is not None
        queue = engine._queue
        # The first replies have come, and most must be asked for again.
        await wait_until(lambda: queue.oldest_large() is not None, description="a claim was put again")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (await dedup.claim(KEYS[-1])).result == RESULT
        assert engine.pending == 0
