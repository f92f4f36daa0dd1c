"""An owner that the caller chose keeps what it held, and loses what it never had."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from fastdedup import Claim, Dedup, ForeignRecordError, Outcome

from ..proxy import proxied
from ..servers import RedisServer
from ..stepping import SteppingServer
from ..waiting import cancel, wait_until

# A named owner that was cancelled while its first reply was lost left the key held, although it held
# nothing.


async def test_a_first_claim_whose_clock_nobody_knows_is_left_alone(
    redis_url: str, redis_server: RedisServer
) -> None:
    """A gate that has had no reply yet cannot tell its own claim from an older one. The model has all others.

    The claim is cancelled once its first reply is lost, and before the second comes. Redis hangs a moment, so that
    its clock is past what it can have shown when the claim was sent.
    """
    async with (
        proxied(redis_server) as proxy,
        Dedup(proxy.url, namespace="t", timeout=5.0) as dedup,
        Dedup(redis_url, namespace="t", timeout=5.0) as other,
    ):
        held = await other.claim("k", owner="w1")
        proxy.lose("claim")
        with redis_server.frozen():
            asked = asyncio.create_task(dedup.claim("k", owner="w1"))
            await wait_until(lambda: proxy.seen["claim"], description="the claim is under way")
        proxy.hold()
        await wait_until(lambda: proxy.lost["claim"], description="its reply is lost")
        await cancel(asked)
        proxy.forward()
        await dedup.get("k")
        await held.complete("done")


# The server's clock is set ahead. A named owner gives up a further claim: what it held before stays its
# own.


AHEAD = 2.0
STEPS = pytest.mark.parametrize("step", [0.2, AHEAD])


@pytest.fixture(scope="module")
def stepping() -> Iterator[SteppingServer]:
    server = SteppingServer()
    server.start()
    yield server
    server.kill()


@asynccontextmanager
async def stepped(server: SteppingServer, step: float) -> AsyncIterator[Dedup]:
    """A gate that has learned the server's clock before that was set ahead."""
    server.set_back(0.0)
    with server.client() as raw:
        raw.flushdb()
    async with Dedup(server.url, namespace="t", timeout=5.0) as gate:
        await gate.claim("warm", owner="q")
        server.set_back(-step)
        yield gate


async def cancel_repeat(gate: Dedup) -> None:
    """Claim once more what worker-1 holds, and cancel that when it is sent."""
    repeat = asyncio.ensure_future(gate.claim("k", owner="worker-1"))
    while not gate.in_flight:  # noqa: ASYNC110 -- it is sent at the end of a turn
        await asyncio.sleep(0)
    repeat.cancel()
    await asyncio.wait([repeat])
    assert repeat.cancelled()


async def holds(gate: Dedup, claim: Claim) -> bool:
    """Tell whether a claim still keeps others out."""
    other = await gate.claim(claim.key, owner="other")
    return other.outcome is Outcome.IN_PROGRESS


@STEPS
async def test_a_cancelled_repeat_frees_nothing(stepping: SteppingServer, step: float) -> None:
    async with stepped(stepping, step) as gate:
        claim = await gate.claim("k", owner="worker-1")
        await cancel_repeat(gate)
        assert await holds(gate, claim)
        await claim.complete(1)


@STEPS
async def test_a_list_that_fails_frees_only_what_it_took_itself(
    stepping: SteppingServer, step: float
) -> None:
    async with stepped(stepping, step) as gate:
        with stepping.client() as raw:
            raw.set("t:=foreign", "not ours")
        claim = await gate.claim("k", owner="worker-1")
        with pytest.raises(ForeignRecordError):
            await gate.claim_many(["k", "free", "foreign"], owner="worker-1")
        assert await holds(gate, claim)
        assert (await gate.claim("free")).acquired
        await claim.complete(1)


async def test_an_unseen_step_frees_nothing(stepping: SteppingServer) -> None:
    """The claim is another process's, under the same name; this one is told of the step by its own answer."""
    async with stepped(stepping, AHEAD) as gate, Dedup(stepping.url, namespace="t", timeout=5.0) as twin:
        claim = await twin.claim("k", owner="worker-1")
        await cancel_repeat(gate)
        assert await holds(gate, claim)
        await claim.complete(1)
