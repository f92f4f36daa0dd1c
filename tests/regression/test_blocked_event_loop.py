"""A program that blocked its event loop for about a deadline got UnavailableError from a healthy Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from fastdedup import Claim, Dedup, UnavailableError

from ..idle import IdleTime
from ..servers import RedisServer

TIMEOUT = 0.25
BLOCKS = (0.2, 0.24, 0.25, 0.26, 0.28, 0.305, 0.5)
"""Seconds for which the loop is blocked: around the deadline, and around what a claim is given beyond it."""
both_loops = pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
Wait = Callable[[Dedup, RedisServer], Coroutine[Any, Any, None]]


async def before_the_send(dedup: Dedup, server: RedisServer) -> None:
    """The claim is accepted; its batch leaves at the end of this turn of the loop."""


async def right_after_the_send(dedup: Dedup, server: RedisServer) -> None:
    engine = dedup._namespace.connection.engine
    assert engine is not None
    while not engine.in_flight:  # noqa: ASYNC110 -- in this very turn
        await asyncio.sleep(0)


async def while_the_reply_arrives(dedup: Dedup, server: RedisServer) -> None:
    """Redis has the claim, and answers once the loop is blocked."""
    server.freeze()
    try:
        await right_after_the_send(dedup, server)
        for _ in range(3):
            await asyncio.sleep(0)  # uvloop writes at the end of a turn
    finally:
        server.thaw()


def block(seconds: float) -> None:
    """Block the loop: no fault can be made without it."""
    time.sleep(seconds)


@both_loops
@pytest.mark.parametrize("until", [before_the_send, right_after_the_send, while_the_reply_arrives])
def test_a_blocked_loop_is_no_outage(
    redis_url: str, redis_server: RedisServer, new_loop: Callable[[], Any], until: Wait
) -> None:
    async def blocks(dedup: Dedup, seconds: float) -> None:
        await until(dedup, redis_server)
        block(seconds)

    async def claims_while_blocked() -> None:
        async with Dedup(redis_url, namespace="t", timeout=TIMEOUT) as dedup:
            await dedup.get("warm")
            for seconds in BLOCKS:
                claim, _ = await asyncio.gather(dedup.claim(f"k{seconds}", lease=60), blocks(dedup, seconds))
                assert claim.acquired
                await claim.release()
            assert not len(dedup._namespace.connection.undo)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(claims_while_blocked())


@both_loops
def test_claims_of_a_list_and_of_the_blocking_task_succeed(
    redis_url: str, new_loop: Callable[[], Any]
) -> None:
    async def claims_and_blocks(dedup: Dedup, seconds: float) -> Claim:
        call = asyncio.ensure_future(dedup.claim(f"own{seconds}", lease=60))
        await asyncio.sleep(0)
        block(seconds)
        return await call

    async def claims_while_blocked() -> None:
        async with Dedup(redis_url, namespace="t", timeout=TIMEOUT) as dedup:
            await dedup.get("warm")
            for seconds in BLOCKS:
                keys = [f"{seconds}:{number}" for number in range(300)]
                listed, own = await asyncio.gather(
                    dedup.claim_many(keys, lease=60), claims_and_blocks(dedup, seconds)
                )
                assert all(claim.acquired for claim in (*listed, own))

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(claims_while_blocked())


@both_loops
def test_a_loop_that_is_blocked_again_and_again_is_no_outage(
    redis_url: str, new_loop: Callable[[], Any]
) -> None:
    async def blocks(seconds: float) -> None:
        for _ in range(3):
            block(seconds)
            await asyncio.sleep(0)

    async def claims_while_blocked() -> None:
        async with Dedup(redis_url, namespace="t", timeout=TIMEOUT) as dedup:
            await dedup.get("warm")
            for seconds in (0.06, 0.13, 0.26):
                claim, _ = await asyncio.gather(dedup.claim(f"k{seconds}", lease=60), blocks(seconds))
                assert claim.acquired

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(claims_while_blocked())


@both_loops
def test_a_frozen_redis_ends_at_the_deadline(
    redis_url: str, redis_server: RedisServer, new_loop: Callable[[], Any]
) -> None:
    """What a blocked loop is given on top, a silent server does not get."""

    async def claims_while_frozen() -> None:
        async with Dedup(redis_url, namespace="t", timeout=TIMEOUT) as dedup:
            await dedup.get("warm")
            with redis_server.frozen():
                for number in range(3):
                    with IdleTime() as idle, pytest.raises(UnavailableError):
                        await dedup.claim(f"frozen{number}", lease=60)
                    assert idle.seconds < TIMEOUT + 0.1

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(claims_while_frozen())
