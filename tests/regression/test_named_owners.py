"""An owner that the caller chose keeps what it held, and loses what it never had."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fastdedup import Claim, Dedup, ForeignRecordError, Outcome
from fastdedup.events import Conflict, Replayed

from ..outage.test_reconciliation import Gate, Site, site_of
from ..proxy import Proxy, proxied
from ..servers import RedisServer
from ..stepping import SteppingServer

# A named owner that was cancelled while its first reply was lost left the key held, although it held
# nothing.


WaitUntil = Callable[..., Any]
Ask = Callable[[Dedup], Any]


@asynccontextmanager
async def gates(server: RedisServer) -> AsyncIterator[tuple[Dedup, Proxy, Dedup]]:
    async with (
        proxied(server) as proxy,
        Dedup(proxy.url, namespace="t", timeout=5.0, lease=60.0) as dedup,
        Dedup(server.url, namespace="t", timeout=5.0, lease=60.0) as other,
    ):
        for _ in range(5):
            await dedup.claim("warm", owner="w1")
        yield dedup, proxy, other


async def is_cancelled_without_its_reply(
    dedup: Dedup, proxy: Proxy, server: RedisServer, wait_until: WaitUntil, ask: Ask
) -> None:
    """Cancel a claim whose first reply is lost, before the second comes.

    Redis hangs a moment, so that its clock is past what it can have shown when the claim was sent.
    """
    lost = proxy.lost["claim"]
    proxy.lose("claim")
    with server.frozen():
        asked = asyncio.ensure_future(ask(dedup))
        seen = proxy.seen["claim"]
        await wait_until(lambda: proxy.seen["claim"] > seen, description="the claim is under way")
    proxy.hold()
    await wait_until(lambda: proxy.lost["claim"] > lost, description="its reply is lost")
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    proxy.forward()


async def by_claim(dedup: Dedup) -> Any:
    return await dedup.claim("k", owner="w1")


async def by_list(dedup: Dedup) -> Any:
    return await dedup.claim_many(["k", "l"], owner="w1")


async def by_waiting(dedup: Dedup) -> Any:
    return await dedup.claim("k", owner="w1", wait=10.0)


every_way = pytest.mark.parametrize("ask", [by_claim, by_list, by_waiting])


@every_way
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_the_key_that_it_held_before_stays_its_own(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil, ask: Ask, elsewhere: bool
) -> None:
    """Held by this gate, or by another process of the same name."""
    async with gates(redis_server) as (dedup, proxy, other):
        held = await (other if elsewhere else dedup).claim("k", owner="w1")
        await is_cancelled_without_its_reply(dedup, proxy, redis_server, wait_until, ask)
        engine = dedup.gate.connection.engine
        assert engine is not None
        await wait_until(lambda: not engine.pending, description="all is answered")
        await dedup.get("k")
        assert not (await other.claim("k", owner="w2")).acquired
        await held.complete("done")


async def test_a_first_claim_whose_clock_nobody_knows_is_left_alone(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil
) -> None:
    """A gate that has had no reply yet cannot tell its own claim from an older one."""
    async with (
        proxied(redis_server) as proxy,
        Dedup(proxy.url, namespace="t", timeout=5.0) as dedup,
        Dedup(redis_url, namespace="t", timeout=5.0) as other,
    ):
        held = await other.claim("k", owner="w1")
        await is_cancelled_without_its_reply(dedup, proxy, redis_server, wait_until, by_claim)
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


# Two processes used one owner's name on both sides of an outage: both acted, and nobody was told of it.


async def completes(gate: Gate, result: Any) -> None:
    claim = await gate.dedup.claim("order", owner="w1")
    assert claim.acquired
    await claim.complete(result)


async def recovers(site: Site, gate: Gate) -> None:
    await site.heal()
    await gate.came_home()


def the_conflict(gate: Gate, kept: str) -> None:
    assert gate.of(Conflict) == [Conflict("shop", "order", "w1", "w1", kept)]
    assert gate.of(Replayed)[-1].conflicts == 1


@pytest.mark.parametrize("settled", [True, False])
async def test_a_result_of_another_process_under_one_name_is_a_conflict(
    settled: bool, wait_until: WaitUntil
) -> None:
    async with site_of("killed", wait_until) as site:
        theirs, ours = await site.gate(), await site.gate()
        await completes(theirs, "theirs")
        site.strike()
        claim = await ours.dedup.claim("order", owner="w1")
        assert (claim.acquired, claim.degraded) == (True, True)
        if settled:
            await claim.complete("ours")
        await recovers(site, ours)
        the_conflict(ours, kept="theirs")
        assert (await ours.dedup.claim("order")).result == "theirs"


async def test_a_result_that_was_evicted_here_is_a_conflict(wait_until: WaitUntil) -> None:
    """The same process, and it has forgotten."""
    async with site_of("killed", wait_until) as site:
        gate = await site.gate(maxsize=20)
        await completes(gate, "first")
        for number in range(25):
            await (await gate.dedup.claim(f"filler {number}")).complete()
        site.strike()
        await completes(gate, "second")
        await recovers(site, gate)
        the_conflict(gate, kept="theirs")


async def test_a_success_over_another_process_failure_is_a_conflict(wait_until: WaitUntil) -> None:
    async with site_of("killed", wait_until) as site:
        theirs, ours = await site.gate(), await site.gate()
        await (await theirs.dedup.claim("order", owner="w1")).fail("theirs")
        site.strike()
        await completes(ours, "ours")
        await recovers(site, ours)
        the_conflict(ours, kept="ours")
        assert (await theirs.dedup.claim("order")).result == "ours"


async def test_a_claim_at_work_under_one_name_is_its_own(wait_until: WaitUntil) -> None:
    """It cannot be told from the claim whose reply was lost: the same owner gets its own claim back."""
    async with site_of("killed", wait_until) as site:
        theirs, ours = await site.gate(), await site.gate()
        assert (await theirs.dedup.claim("order", owner="w1")).acquired
        site.strike()
        await completes(ours, "done")
        await recovers(site, ours)
        assert ours.of(Conflict) == []
        found = await theirs.dedup.claim("order")
        assert (found.outcome, found.result) == (Outcome.SUCCEEDED, "done")
