"""`claim_many(["q", "q"], wait=1)` waited for a claim of its own list."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from fastdedup import Claim, Dedup, Outcome

from ..stores import STORES, Backend, on_stores

WaitUntil = Callable[..., Any]
WAIT = 30.0
every_store = on_stores(*STORES)


def outcomes(claims: Sequence[Claim]) -> list[str]:
    return [claim.outcome.value for claim in claims]


async def at_once(work: Any) -> Any:
    """Return what comes long before the wait is over."""
    async with asyncio.timeout(WAIT / 3):
        return await work


@every_store
async def test_a_list_does_not_wait_for_its_own_claims(backend: Backend) -> None:
    async with backend.make() as dedup:
        claims = await at_once(dedup.claim_many(["q", "r", "q", "q"], wait=WAIT))
        assert outcomes(claims) == ["acquired", "acquired", "in_progress", "in_progress"]


@every_store
async def test_a_named_owner_gets_its_claim_each_time(backend: Backend) -> None:
    async with backend.make() as dedup:
        claims = await at_once(dedup.claim_many(["q", "q"], owner="w1", wait=WAIT))
        assert outcomes(claims) == ["acquired", "acquired"]
        assert len({claim.fence for claim in claims}) == 1
        await claims[0].complete("done")


async def test_duplicates_held_elsewhere_wait_once(redis_url: str, wait_until: WaitUntil) -> None:
    async with (
        Dedup(redis_url, namespace="t", timeout=5.0) as dedup,
        Dedup(redis_url, namespace="t") as other,
    ):
        held = await other.claim("q", lease=60)
        listed = asyncio.ensure_future(dedup.claim_many(["q", "r", "q", "q"], wait=WAIT))
        wakeups = dedup._namespace.connection.wakeups
        await wait_until(lambda: wakeups._count, description="the list waits")
        assert list(wakeups._count.values()) == [1]
        await held.complete("done")
        claims = await at_once(listed)
        assert outcomes(claims) == ["succeeded", "acquired", "succeeded", "succeeded"]
        assert {claim.result for claim in claims if claim.outcome is Outcome.SUCCEEDED} == {"done"}


async def test_the_first_of_several_duplicates_takes_a_freed_key(
    redis_url: str, wait_until: WaitUntil
) -> None:
    async with (
        Dedup(redis_url, namespace="t", timeout=5.0) as dedup,
        Dedup(redis_url, namespace="t") as other,
    ):
        held = await other.claim("q", lease=60)
        listed = asyncio.ensure_future(dedup.claim_many(["q", "q"], wait=WAIT))
        wakeups = dedup._namespace.connection.wakeups
        await wait_until(lambda: wakeups._count, description="the list waits")
        await held.release()
        assert outcomes(await at_once(listed)) == ["acquired", "in_progress"]


async def test_it_gives_up_once_for_all_duplicates(redis_url: str) -> None:
    async with (
        Dedup(redis_url, namespace="t", timeout=5.0) as dedup,
        Dedup(redis_url, namespace="t") as other,
    ):
        await other.claim("q", lease=60)
        began = asyncio.get_running_loop().time()
        claims = await dedup.claim_many(["q"] * 8, wait=0.2)
        assert asyncio.get_running_loop().time() - began < 8 * 0.2
        assert outcomes(claims) == ["in_progress"] * 8
