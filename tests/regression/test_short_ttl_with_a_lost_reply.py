"""`complete(ttl=0.01)` whose reply was lost said "nothing was changed", although it was recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from fastdedup import ClaimLostError, Dedup

from ..proxy import Proxy, proxied
from ..servers import RedisServer
from ..sidecars import Sidecar

WaitUntil = Callable[..., Any]
every_way = pytest.mark.parametrize("by_sidecar", [False, True], ids=["redis", "sidecar"])


@asynccontextmanager
async def gate(server: RedisServer, by_sidecar: bool) -> AsyncIterator[tuple[Dedup, Proxy, Dedup]]:
    """A gate whose replies a proxy may lose, and another one straight to the server."""
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(proxied(server))
        url = proxy.url
        if by_sidecar:
            sidecar = Sidecar(proxy.url, timeout=5.0)
            stack.callback(sidecar.stop)
            await asyncio.to_thread(sidecar.start)
            url = sidecar.url
        dedup = await stack.enter_async_context(Dedup(url, namespace="t", timeout=5.0))
        other = await stack.enter_async_context(Dedup(server.url, namespace="t", timeout=5.0))
        yield dedup, proxy, other


async def loses_the_reply(dedup: Dedup, proxy: Proxy, other: Dedup, wait_until: WaitUntil, work: Any) -> None:
    """Let Redis act; its record is gone before the same is sent again."""
    proxy.hold()
    settling = asyncio.ensure_future(work)

    async def gone() -> bool:
        return await other.get("k") is None

    await wait_until(gone, description="the record has expired")
    proxy.cut()
    proxy.forward()
    await settling


@every_way
@pytest.mark.parametrize("how", ["complete", "fail"])
async def test_a_settling_that_was_recorded_is_not_lost(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil, by_sidecar: bool, how: str
) -> None:
    async with gate(redis_server, by_sidecar) as (dedup, proxy, other):
        claim = await dedup.claim("k", lease=60)
        await loses_the_reply(dedup, proxy, other, wait_until, getattr(claim, how)("done", ttl=0.01))
        assert not claim.lost


@every_way
async def test_a_settling_that_another_owner_prevented_is_lost(
    redis_url: str, redis_server: RedisServer, by_sidecar: bool
) -> None:
    """Answered at first sight: nothing was changed."""
    async with gate(redis_server, by_sidecar) as (dedup, _, other):
        claim = await dedup.claim("k", lease=60)
        await other.forget("k")
        assert (await other.claim("k")).acquired
        with pytest.raises(ClaimLostError, match="nothing was changed"):
            await claim.complete("done", ttl=0.01)
