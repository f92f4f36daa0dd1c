"""The server's clock is set ahead. A named owner gives up a further claim: what it held before stays its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from fastdedup import Claim, Dedup, ForeignRecordError, Outcome

from ..stepping import SteppingServer

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
async def test_a_list_that_fails_frees_nothing(stepping: SteppingServer, step: float) -> None:
    async with stepped(stepping, step) as gate:
        with stepping.client() as raw:
            raw.set("t:=foreign", "not ours")
        claim = await gate.claim("k", owner="worker-1")
        with pytest.raises(ForeignRecordError):
            await gate.claim_many(["k", "foreign"], owner="worker-1")
        assert await holds(gate, claim)
        await claim.complete(1)


async def test_an_unseen_step_frees_nothing(stepping: SteppingServer) -> None:
    """The claim is another process's, under the same name; this one is told of the step by its own answer."""
    async with stepped(stepping, AHEAD) as gate, Dedup(stepping.url, namespace="t", timeout=5.0) as twin:
        claim = await twin.claim("k", owner="worker-1")
        await cancel_repeat(gate)
        assert await holds(gate, claim)
        await claim.complete(1)
