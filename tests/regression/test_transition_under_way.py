"""Two gates share a LocalLRU; one was cut off while the other moved a machine: both were told CHANGED."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from fastdedup import BreakerState, Dedup, LocalLRU, StateMachine, TransitionOutcome
from fastdedup.events import Conflict, Event

from ..outage.test_reconciliation import way_to
from ..proxy import Fate, Proxy
from ..servers import RedisServer

WaitUntil = Callable[..., Any]

SWITCH = {"open": ("closed",), "closed": ("open",)}


class Gates:
    """Two gates with one policy, each with its own way to Redis."""

    def __init__(self, gates: list[Dedup], ways: list[Proxy], policy: LocalLRU, events: list[Event]) -> None:
        self.gates = gates
        self.ways = ways
        self.policy = policy
        self.events = events

    def machines(self) -> list[StateMachine]:
        return [gate.machine("door", initial="open", transitions=SWITCH) for gate in self.gates]

    async def cut_off_second(self) -> None:
        self.ways[1].follow(lambda name: Fate.CUT)
        self.ways[1].cut()

    async def came_home(self, wait_until: WaitUntil) -> None:
        for way in self.ways:
            way.forward()
        await wait_until(
            lambda: not self.policy.lines and all(gate.breaker is BreakerState.CLOSED for gate in self.gates),
            description="the journal is empty",
        )


@asynccontextmanager
async def two_gates(server: RedisServer) -> AsyncIterator[Gates]:
    async with AsyncExitStack() as stack:
        policy, events = LocalLRU(), list[Event]()
        ways = [await stack.enter_async_context(way_to(server, f"gate{n}.sock")) for n in (1, 2)]
        gates = [
            Dedup(way.url, namespace="shop", timeout=5.0, on_unavailable=policy, on_event=events.append)
            for way in ways
        ]
        for gate in gates:
            await stack.enter_async_context(gate)
        yield Gates(gates, ways, policy, events)


@pytest.mark.parametrize("version", [0, None])
async def test_one_version_is_changed_once_in_a_process(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil, version: int | None
) -> None:
    """Where the policy has moved the machine meanwhile, its answer stands, and the store takes its word."""
    async with two_gates(redis_server) as gates:
        first, second = gates.machines()
        gates.ways[0].hold()
        moving = asyncio.create_task(first.transition("1", to="closed", version=version))
        await wait_until(lambda: gates.ways[0].seen["transition"], description="Redis was asked")
        await gates.cut_off_second()
        here = await second.transition("1", to="closed", version=version)
        assert (here.changed, here.version, here.degraded) == (True, 1, True)
        gates.ways[0].forward()
        there = await moving
        assert (there.outcome, there.version) == (TransitionOutcome.ALREADY, 1)
        assert there.degraded
        await gates.came_home(wait_until)
        assert await first.get("1") == ("closed", 1)
        assert not [event for event in gates.events if isinstance(event, Conflict)]


async def test_a_cancelled_callers_change_is_known_in_an_outage(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil
) -> None:
    async with two_gates(redis_server) as gates:
        first, second = gates.machines()
        gates.ways[0].hold()
        moving = asyncio.create_task(first.transition("1", to="closed"))
        await wait_until(lambda: gates.ways[0].seen["transition"], description="Redis was asked")
        moving.cancel()
        await asyncio.gather(moving, return_exceptions=True)
        gates.ways[0].forward()
        wire = first._wire("1")
        await wait_until(lambda: gates.policy._store.entry(wire), description="the policy has heard of it")
        await gates.cut_off_second()
        move = await second.transition("1", to="open", version=1)
        assert (move.changed, move.version, move.degraded) == (True, 2, True)
        await gates.came_home(wait_until)
        assert not [event for event in gates.events if isinstance(event, Conflict)]
