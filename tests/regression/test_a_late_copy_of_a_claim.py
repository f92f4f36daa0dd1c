"""Fault: a claim that a proxy held back, and passed on after the release, took the key for nobody.

The claim had been sent again meanwhile, so its owner had worked and released the key. The late copy acquired it for
the same owner, who was gone, and the key was held until the lease ended. The same for a claim that was given up: it
was looked for twice within a second, and not again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fastdedup import Dedup, UnavailableError

from ..proxy import Fate, Proxy, proxied
from ..servers import RedisServer

WaitUntil = Callable[..., Any]
LEASE = 60.0
SOON = 3.0
EACH_CALL = 3
"""Sendings of one call whose connection is cut each time, before it fails or looks again."""


async def claim(dedup: Dedup) -> None:
    await (await dedup.claim("key", lease=LEASE)).release()


async def claim_and_wait(dedup: Dedup) -> None:
    await (await dedup.claim("key", lease=LEASE, wait=5.0)).release()


async def claim_many(dedup: Dedup) -> None:
    for each in await dedup.claim_many(["key"], lease=LEASE, wait=5.0):
        await each.release()


async def lock(dedup: Dedup) -> None:
    async with dedup.lock("key", lease=LEASE):
        pass


def keep_claims(proxy: Proxy, times: int) -> None:
    """Keep back the next sendings of a claim."""

    def plan(name: str) -> Fate:
        return Fate.KEEP if name == "claim" and len(proxy.kept) < times else Fate.PASS

    proxy.follow(plan)


@asynccontextmanager
async def gates(server: RedisServer) -> AsyncIterator[tuple[Proxy, Dedup, Dedup]]:
    async with (
        proxied(server) as proxy,
        Dedup(proxy.url, namespace="t", timeout=1.0) as dedup,
        Dedup(server.url, namespace="t", timeout=5.0) as other,
    ):
        await (await dedup.claim("warm")).release()
        yield proxy, dedup, other


async def is_free_soon(other: Dedup, wait_until: WaitUntil) -> None:
    async def is_free() -> bool:
        return (await other.claim("key")).acquired

    await wait_until(is_free, description="the key is free", deadline=SOON)


@pytest.mark.parametrize(
    ("use", "kept"), [(claim, 1), (claim_and_wait, 1), (claim_and_wait, EACH_CALL), (claim_many, EACH_CALL)]
)
async def test_a_late_copy_holds_no_key_that_was_released(
    redis_url: str,
    redis_server: RedisServer,
    wait_until: WaitUntil,
    use: Callable[[Dedup], Awaitable[None]],
    kept: int,
) -> None:
    async with gates(redis_server) as (proxy, dedup, other):
        keep_claims(proxy, kept)
        await use(dedup)
        assert len(proxy.kept) == kept
        await proxy.deliver()
        assert not (await other.claim("key")).acquired
        await is_free_soon(other, wait_until)


async def test_a_late_copy_holds_no_key_of_a_claim_that_failed(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil
) -> None:
    async with gates(redis_server) as (proxy, dedup, other):
        keep_claims(proxy, EACH_CALL)
        with pytest.raises(UnavailableError):
            await dedup.claim("key", lease=LEASE)
        undo = dedup._namespace.connection.undo
        await wait_until(lambda: not len(undo), description="nothing was found, twice")
        await proxy.deliver()
        assert not (await other.claim("key")).acquired
        await is_free_soon(other, wait_until)


async def test_a_claim_that_was_sent_once_is_not_watched(redis_url: str) -> None:
    async with Dedup(redis_url, namespace="t") as dedup:
        for use in (claim, claim_and_wait, claim_many, lock):
            await use(dedup)
        assert not dedup._namespace.connection.undo
