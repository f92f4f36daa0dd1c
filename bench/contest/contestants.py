"""The contestants that can play on any Redis: redis-py, which is the baseline, and fastdedup."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from operator import attrgetter
from typing import Any

import orjson
from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis

from fastdedup import Claim, Dedup
from fastdedup.cli.bench import LEASE_MS

from .model import Contestant, Ops, Setting

TIMEOUT = 5.0  # seconds of our gate: a busy machine refuses no claim
HOT = "h"  # the last character of a storm's keys; fresh keys end in a digit


def result_of(key: str) -> str:
    """Return the result that the first caller of a key stores: short, so that checking it takes little time."""
    return "paid " + key


def as_expected(key: str, first: bool, result: Any) -> bool:
    """True where a claim in a storm got the right answer: a hot key is settled and has its first result."""
    return not first and bool(result == result_of(key)) if key[-1] == HOT else first


def redis_client(setting: Setting) -> Redis:
    """Return redis-py's client with a pool of `width` connections; with 0, a connection for every caller."""
    if setting.width:
        pool = BlockingConnectionPool.from_url(setting.url, max_connections=setting.width, timeout=None)
        return Redis.from_pool(pool)
    return Redis.from_pool(ConnectionPool.from_url(setting.url, max_connections=setting.callers))


@asynccontextmanager
async def redis_py(setting: Setting) -> AsyncIterator[Ops]:
    """The baseline: ``SET key value NX PX``, a call for each claim."""
    client = redis_client(setting)
    claim = partial(client.set, value=b"v", nx=True, px=LEASE_MS)

    async def cycle(key: str) -> bool:
        won = await claim(key)
        await client.set(key, orjson.dumps(result_of(key)), px=LEASE_MS)
        return bool(won)

    async def replay(key: str) -> bool:
        if await claim(key):
            return as_expected(key, True, None)
        return as_expected(key, False, orjson.loads(await client.get(key) or b"null"))

    try:
        yield Ops(claim, cycle, replay)
    finally:
        await client.aclose()


def our_dedup(setting: Setting, **options: Any) -> Dedup:
    """Return our `Dedup` with its defaults, but with records that expire within minutes and a long deadline."""
    return Dedup(
        setting.url,
        namespace=setting.namespace,
        lease=LEASE_MS / 1000,
        ttl=60.0,
        timeout=TIMEOUT,
        **options,
    )


@asynccontextmanager
async def ours(setting: Setting, **options: Any) -> AsyncIterator[Ops]:
    """Our gate through its public API: owner, fence, lease, known duplicates from memory."""
    dedup = our_dedup(setting, **options)

    async def cycle(key: str) -> bool:
        claim = await dedup.claim(key)
        await claim.complete(result_of(key))
        return claim.acquired is True

    def right(key: str, claim: Claim) -> bool:
        return as_expected(key, claim.acquired, claim.result)

    async with dedup:
        yield Ops(dedup.claim, cycle, dedup.claim, attrgetter("acquired"), right)


CONTESTANTS = (
    Contestant("redis-py SET NX PX", redis_py, widths=(0, 8, 32, 128)),
    Contestant("fastdedup", ours),
)
BASELINE = CONTESTANTS[0].name
OURS = CONTESTANTS[1].name
