"""A claim without a reply took the key in the frozen store, from the one to whom LocalLRU had given it meanwhile.

The first claimant was told IN_PROGRESS, so nobody held the key there. The journal did not know that claimant, and
took it for another process: the live owner lost the key with a Conflict, and a waiting claimant got it beside them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from fastdedup import BreakerState, Claim, Dedup, LocalLRU, Outcome
from fastdedup.events import Conflict, Event

from ..servers import RedisServer

WaitUntil = Callable[..., Awaitable[Any]]
LONG = 30.0
"""Seconds that a busy machine may add."""


class Site(NamedTuple):
    """A frozen server, and two gates with one policy: `quick` gives the server up before `patient` does."""

    server: RedisServer
    quick: Dedup
    patient: Dedup
    policy: LocalLRU
    events: list[Event]

    async def live_owner(self, wait_until: WaitUntil) -> Claim:
        """Open the breaker of `quick`, and claim the key there: that claim is never sent."""
        await self.quick.claim("other")
        await wait_until(lambda: self.quick.breaker is BreakerState.OPEN, description="the breaker is open")
        owner = await self.quick.claim("k")
        assert (owner.outcome, owner.degraded) == (Outcome.ACQUIRED, True)
        return owner

    async def comes_back(self, wait_until: WaitUntil) -> None:
        self.server.thaw()
        await wait_until(lambda: not self.policy.lines, description="the store has the policy's records")


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer().start()
    yield server
    server.stop()


@asynccontextmanager
async def frozen(server: RedisServer) -> AsyncIterator[Site]:
    policy, events = LocalLRU(), list[Event]()
    options: dict[str, Any] = {"namespace": "t", "on_unavailable": policy, "on_event": events.append}
    async with (
        Dedup(server.url, timeout=0.1, **options) as quick,
        Dedup(server.url, timeout=0.5, **options) as patient,
    ):
        await asyncio.gather(quick.get("warm"), patient.get("warm"))
        with server.frozen():
            yield Site(server, quick, patient, policy, events)


async def test_the_owner_keeps_the_key_after_the_thaw(server: RedisServer, wait_until: WaitUntil) -> None:
    async with frozen(server) as site:
        lost = asyncio.create_task(site.patient.claim("k"))
        owner = await site.live_owner(wait_until)
        assert (await lost).outcome is Outcome.IN_PROGRESS
        await site.comes_back(wait_until)
        assert (await site.patient.claim("k")).outcome is Outcome.IN_PROGRESS
        await owner.complete("done")
        assert (await site.patient.claim("k")).result == "done"
        assert not [event for event in site.events if isinstance(event, Conflict)]


async def test_a_waiter_gets_no_key_that_is_held(server: RedisServer, wait_until: WaitUntil) -> None:
    async with frozen(server) as site:
        waiting = asyncio.create_task(site.patient.claim("k", wait=LONG))
        owner = await site.live_owner(wait_until)
        await wait_until(lambda: site.patient.breaker is BreakerState.OPEN, description="its look is lost")
        await site.comes_back(wait_until)
        await owner.complete("done")
        found = await waiting
        assert (found.outcome, found.result) == (Outcome.SUCCEEDED, "done")


async def test_a_lost_claims_result_here_is_no_conflict(server: RedisServer, wait_until: WaitUntil) -> None:
    async with frozen(server) as site:
        lost = asyncio.create_task(site.patient.claim("k"))
        owner = await site.live_owner(wait_until)
        await owner.complete("done")
        assert (await lost).result == "done"
        await site.comes_back(wait_until)
        assert (await site.patient.claim("k")).result == "done"
        assert not [event for event in site.events if isinstance(event, Conflict)]


async def test_a_cancelled_claim_takes_no_key_from_its_owner(
    server: RedisServer, wait_until: WaitUntil
) -> None:
    async with frozen(server) as site:
        cancelled = asyncio.create_task(site.quick.claim("k"))
        engine = site.quick._namespace.connection.running_engine()
        await wait_until(lambda: engine.in_flight, description="it is sent")
        cancelled.cancel()
        owner = await site.live_owner(wait_until)
        await site.comes_back(wait_until)
        assert (await site.patient.claim("k")).outcome is Outcome.IN_PROGRESS
        await owner.complete("done")
        assert not [event for event in site.events if isinstance(event, Conflict)]
