"""A batch that failed as a whole left what it had written before: keys held, and nobody was told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fastdedup import BreakerState, Claim, Dedup, UnavailableError

from ..servers import RedisServer

WaitUntil = Callable[..., Any]


@pytest.fixture
def forbidding(redis_server: RedisServer) -> Any:
    """Lets Redis refuse SETRANGE: a claimant that asks again for its own claim needs it, a first one does not."""
    with redis_server.client() as raw:

        def forbid() -> None:
            raw.execute_command("ACL", "SETUSER", "default", "-setrange")

        yield forbid
        raw.execute_command("ACL", "SETUSER", "default", "+@all")


async def attempts(other: Dedup, keys: list[str], wait_until: WaitUntil) -> list[int]:
    """Acquire each key as another caller, soon; return how often each was acquired by then."""

    async def acquired(key: str) -> Claim | None:
        claim = await other.claim(key, lease=60)
        return claim if claim.acquired else None

    taken = [
        await wait_until(partial(acquired, key), description=f"another caller acquires {key}", deadline=2.0)
        for key in keys
    ]
    return [claim.attempt for claim in taken]


async def test_what_a_failed_batch_had_written_is_undone(
    redis_url: str, forbidding: Callable[[], None], wait_until: WaitUntil
) -> None:
    async with (
        Dedup(redis_url, namespace="t", timeout=5.0) as dedup,
        Dedup(redis_url, namespace="t") as other,
    ):
        await dedup.claim("held", owner="w1", lease=1)
        forbidding()
        # As few as one batch takes: the last of them fails, the others are written before.
        keys = [f"k{number}" for number in range(10)]
        asked = [dedup.claim(key, lease=60) for key in keys]
        answers = await asyncio.gather(
            *asked, dedup.claim("held", owner="w1", lease=60), return_exceptions=True
        )
        assert all(isinstance(answer, UnavailableError) for answer in answers)
        assert dedup.breaker is BreakerState.CLOSED

        # Written, and undone: each was acquired before.
        assert await attempts(other, keys, wait_until) == [2] * len(keys)


async def test_a_list_in_a_failed_batch_is_undone(
    redis_url: str, forbidding: Callable[[], None], wait_until: WaitUntil
) -> None:
    async with (
        Dedup(redis_url, namespace="t", timeout=5.0) as dedup,
        Dedup(redis_url, namespace="t") as other,
    ):
        await dedup.claim("held", owner="w1", lease=1)
        forbidding()
        with pytest.raises(UnavailableError):
            await asyncio.gather(dedup.claim_many(["a", "b"]), dedup.claim("held", owner="w1", lease=60))
        assert await attempts(other, ["a", "b"], wait_until) == [2, 2]
