"""One call moves a machine once: with a lost reply, beside a policy, after an outage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from fastdedup import (
    BreakerState,
    Dedup,
    LocalLRU,
    StateMachine,
    Transition,
    TransitionOutcome,
    UnavailableError,
    UnknownTransitionError,
)
from fastdedup.events import Conflict, Event

from ..outage.test_reconciliation import site_of
from ..proxy import Fate, Proxy, proxied
from ..servers import RedisServer
from ..sidecars import Sidecar
from ..waiting import cancel, wait_until

# A transition's reply was lost, another caller moved the cyclic machine back, and the resend moved it
# again.


SWITCH = {"open": ("closed",), "closed": ("open",)}
TIMEOUT = 5.0


class Door:
    """A machine behind a proxy that loses replies, and the same machine for another caller."""

    def __init__(self, proxy: Proxy, door: StateMachine, elsewhere: StateMachine) -> None:
        self.proxy = proxy
        self.door = door
        self.elsewhere = elsewhere

    async def loses_the_reply(self, *, version: int | None, then: tuple[str, ...]) -> Transition:
        """Close it; before that is sent again, another caller moves it on."""
        seen = self.proxy.seen["transition"]
        self.proxy.hold()
        moving = asyncio.create_task(self.door.transition("1", to="closed", version=version))
        await wait_until(lambda: self.proxy.seen["transition"] > seen, description="Redis was asked")
        for to in then:
            await wait_until(lambda to=to: self.moves(to), description=f"another caller moves it to {to}")
        self.proxy.cut()
        self.proxy.forward()
        return await moving

    async def moves(self, to: str) -> bool:
        return (await self.elsewhere.transition("1", to=to)).changed


@asynccontextmanager
async def door_of(server: RedisServer, *, by_sidecar: bool = False, **options: Any) -> AsyncIterator[Door]:
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(proxied(server))
        url = proxy.url
        if by_sidecar:
            sidecar = Sidecar(proxy.url, timeout=TIMEOUT)
            stack.callback(sidecar.stop)
            await asyncio.to_thread(sidecar.start)
            url = sidecar.url
        gates = [
            await stack.enter_async_context(Dedup(where, timeout=TIMEOUT, **options))
            for where in (url, server.url)
        ]
        yield Door(proxy, *(gate.machine("door", initial="open", transitions=SWITCH) for gate in gates))


@pytest.mark.parametrize("by_sidecar", [False, True], ids=["redis", "sidecar"])
@pytest.mark.parametrize(("version", "advice"), [(None, "pass version="), (0, "decide again by these")])
async def test_one_call_moves_a_cyclic_machine_once(
    redis_url: str, redis_server: RedisServer, version: int | None, advice: str, by_sidecar: bool
) -> None:
    """The message advises `version=` only if the call had none."""
    async with door_of(redis_server, by_sidecar=by_sidecar) as door:
        with pytest.raises(UnknownTransitionError, match=advice) as info:
            await door.loses_the_reply(version=version, then=("open",))
        assert (info.value.state, info.value.version) == ("open", 2)
        assert isinstance(info.value, UnavailableError)
        assert await door.elsewhere.get("1") == ("open", 2)


async def test_a_policy_moves_it_no_second_time_either(redis_url: str, redis_server: RedisServer) -> None:
    async with door_of(redis_server, on_unavailable=LocalLRU()) as door:
        with pytest.raises(UnknownTransitionError):
            await door.loses_the_reply(version=None, then=("open",))
        assert await door.elsewhere.get("1") == ("open", 2)


# Two gates share a LocalLRU; one was cut off while the other moved a machine: both were told CHANGED.


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

    async def came_home(self) -> None:
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
        ways = [await stack.enter_async_context(proxied(server, f"gate{n}.sock")) for n in (1, 2)]
        gates = [
            Dedup(way.url, namespace="shop", timeout=5.0, on_unavailable=policy, on_event=events.append)
            for way in ways
        ]
        for gate in gates:
            await stack.enter_async_context(gate)
        yield Gates(gates, ways, policy, events)


@pytest.mark.parametrize("version", [0, None])
async def test_one_version_is_changed_once_in_a_process(
    redis_url: str, redis_server: RedisServer, version: int | None
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
        await gates.came_home()
        assert await first.get("1") == ("closed", 1)
        assert not [event for event in gates.events if isinstance(event, Conflict)]


async def test_a_cancelled_callers_change_is_known_in_an_outage(
    redis_url: str, redis_server: RedisServer
) -> None:
    async with two_gates(redis_server) as gates:
        first, second = gates.machines()
        gates.ways[0].hold()
        moving = asyncio.create_task(first.transition("1", to="closed"))
        await wait_until(lambda: gates.ways[0].seen["transition"], description="Redis was asked")
        await cancel(moving)
        gates.ways[0].forward()
        wire = first.store_key("1")
        await wait_until(lambda: gates.policy.records.entry(wire), description="the policy has heard of it")
        await gates.cut_off_second()
        move = await second.transition("1", to="open", version=1)
        assert (move.changed, move.version, move.degraded) == (True, 2, True)
        await gates.came_home()
        assert not [event for event in gates.events if isinstance(event, Conflict)]


# A machine's last change was forgotten after ALREADY or ILLEGAL, so that a move in an outage was outranked.


SIGNAL = {"red": ("green",), "green": ("amber",), "amber": ("red",)}


def signal(dedup: Dedup) -> StateMachine:
    return dedup.machine("signal", initial="red", transitions=SIGNAL)


@pytest.mark.parametrize(
    ("to", "outcome", "others"),
    [
        ("green", TransitionOutcome.ALREADY, False),
        ("red", TransitionOutcome.ILLEGAL, False),
        ("green", TransitionOutcome.ILLEGAL, True),
    ],
)
async def test_a_refused_move_keeps_the_known_change(
    to: str, outcome: TransitionOutcome, others: bool
) -> None:
    """If another process has moved it on, that change is not known here, so the local move gives way."""
    async with site_of("killed") as site:
        gate, other = await site.gate(), await site.gate()
        machine = signal(gate.dedup)
        assert (await machine.transition("1", to="green")).changed
        if others:
            assert (await signal(other.dedup).transition("1", to="amber")).changed
        assert (await machine.transition("1", to=to)).outcome is outcome
        site.strike()
        await gate.noticed()
        moved = await machine.transition("1", to="red" if others else "amber")
        assert (moved.changed, moved.degraded) == (True, True)
        await site.come_home(gate)
        assert len(gate.of(Conflict)) == others
        assert await machine.get("1") == ("amber", 2)
