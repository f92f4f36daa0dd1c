"""A renewal believed in its lease for too long where the loop was blocked between the sending and the reply."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from fastdedup import ClaimLostError, Dedup, UnavailableError

from ..servers import RedisServer

BLOCKED = 0.6
LEASE = 0.9


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_body_ends_before_the_servers_lease(
    redis_url: str, redis_server: RedisServer, new_loop: Callable[[], Any]
) -> None:
    """The loop is blocked right behind the sending; then Redis hangs, and no renewal succeeds."""

    async def work() -> tuple[float, float]:
        async with Dedup(redis_url, namespace="t", timeout=0.2) as dedup:
            await dedup.get("warm")
            entering = asyncio.ensure_future(enter(dedup))
            engine = dedup._namespace.connection.engine
            assert engine is not None
            while not engine.in_flight:  # noqa: ASYNC110 -- in this very turn
                await asyncio.sleep(0)
            sent = time.monotonic()
            await asyncio.sleep(0)
            time.sleep(BLOCKED)  # noqa: ASYNC251 -- the fault
            ended = await entering
            return sent, ended

    async def enter(dedup: Dedup) -> float:
        try:
            async with dedup.claim("k", lease=LEASE, renew=True) as claim:
                assert claim.acquired
                redis_server.freeze()
                await asyncio.Event().wait()
        except (ClaimLostError, UnavailableError):
            return time.monotonic()
        finally:
            redis_server.thaw()
        raise AssertionError("the body went on")

    with asyncio.Runner(loop_factory=new_loop) as runner:
        sent, ended = runner.run(work())
    assert ended - sent < LEASE + 0.4 < LEASE + BLOCKED


async def test_renewal_begins_when_the_claim_was_sent(redis_url: str) -> None:
    """Also of each claim in a list, and of one that waited."""
    loop = asyncio.get_running_loop()
    async with Dedup(redis_url, namespace="t", timeout=5.0) as dedup:
        await dedup.get("warm")
        began = loop.time()
        asked = [
            asyncio.ensure_future(claim)
            for claim in (
                dedup.claim("a", lease=60, renew=True),
                dedup.claim("b", lease=60, renew=True, wait=1.0),
                dedup.claim_many(["c", "d"], lease=60, renew=True),
            )
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        time.sleep(BLOCKED)  # noqa: ASYNC251 -- the fault
        a, b, listed = await asyncio.gather(*asked)
        for claim in (a, b, *listed):
            assert claim.acquired
            assert claim._renewal.began < began + BLOCKED / 2
            assert claim._lease_left() < 60 - BLOCKED / 2
            await claim.release()
