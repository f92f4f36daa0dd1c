"""A transition's reply was lost, another caller moved the cyclic machine back, and the resend moved it again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from fastdedup import (
    Dedup,
    LocalLRU,
    StateMachine,
    Transition,
    UnavailableError,
    UnknownTransitionError,
)

from ..proxy import Fate, Proxy, proxied
from ..servers import RedisServer
from ..sidecars import Sidecar

WaitUntil = Callable[..., Any]

SWITCH = {"open": ("closed",), "closed": ("open",)}
TIMEOUT = 5.0


class Door:
    """A machine behind a proxy that loses replies, and the same machine for another caller."""

    def __init__(self, proxy: Proxy, door: StateMachine, elsewhere: StateMachine) -> None:
        self.proxy = proxy
        self.door = door
        self.elsewhere = elsewhere

    async def moved_to(self, version: int) -> None:
        """Let another caller move it so often."""
        for number in range(1, version + 1):
            move = await self.elsewhere.transition("1", to="closed" if number % 2 else "open")
            assert (move.changed, move.version) == (True, number)

    async def loses_the_reply(
        self, wait_until: WaitUntil, *, version: int | None, then: tuple[str, ...]
    ) -> Transition:
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

    def never_arrives(self) -> None:
        """Cut the connection before the next transition reaches Redis."""
        fates = iter([Fate.CUT])
        self.proxy.follow(lambda name: next(fates, Fate.PASS) if name == "transition" else Fate.PASS)


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
@pytest.mark.parametrize("version", [None, 0])
async def test_one_call_moves_a_cyclic_machine_once(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil, version: int | None, by_sidecar: bool
) -> None:
    async with door_of(redis_server, by_sidecar=by_sidecar) as door:
        with pytest.raises(UnknownTransitionError, match="pass version=") as info:
            await door.loses_the_reply(wait_until, version=version, then=("open",))
        assert (info.value.state, info.value.version) == ("open", 2)
        assert isinstance(info.value, UnavailableError)
        assert await door.elsewhere.get("1") == ("open", 2)


async def test_a_policy_moves_it_no_second_time_either(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil
) -> None:
    async with door_of(redis_server, on_unavailable=LocalLRU()) as door:
        with pytest.raises(UnknownTransitionError):
            await door.loses_the_reply(wait_until, version=None, then=("open",))
        assert await door.elsewhere.get("1") == ("open", 2)
