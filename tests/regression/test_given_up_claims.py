"""A claim that was given up after it was sent held its key for the whole lease, and nobody was told of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvloop

from fastdedup import BreakerState, Claim, Dedup, InProgressError, UnavailableError
from fastdedup import sync as synchronous
from fastdedup.events import Event

from ..servers import RedisServer

WaitUntil = Callable[..., Any]
Ask = Callable[[Dedup, str], Awaitable[Any]]

TIMEOUT = 0.15
SOON = 1.0
"""Seconds in which the key is free again."""


class Two:
    """A gate whose Redis hangs now and then, and one that nobody cuts off."""

    def __init__(self, dedup: Dedup, other: Dedup, wait_until: WaitUntil, server: RedisServer) -> None:
        self.dedup = dedup
        self.other = other
        self.server = server
        self.events: list[Event] = []
        self._wait_until = wait_until
        self.undo = dedup._namespace.connection.undo

    async def taken(self, key: str, *, lock: bool = False) -> None:
        """Another caller gets the key soon."""

        async def acquired() -> bool:
            if not lock:
                return (await self.other.claim(key)).acquired
            with suppress(InProgressError):
                async with self.other.lock(key):
                    return True
            return False

        await self._wait_until(acquired, description=f"another caller acquires {key}", deadline=SOON)

    async def is_held(self, key: str) -> bool:
        return not (await self.other.claim(key)).acquired

    async def settled_down(self) -> None:
        await self._wait_until(lambda: not len(self.undo), description="nothing is left to be undone")

    async def loses(self, ask: Ask, key: str) -> UnavailableError:
        """Make a claim while Redis hangs, until it is given up."""
        with self.server.frozen(), pytest.raises(UnavailableError) as info:
            await ask(self.dedup, key)
        return info.value


@asynccontextmanager
async def two(server: RedisServer, wait_until: WaitUntil, **options: Any) -> AsyncIterator[Two]:
    events: list[Event] = []
    settings = {"namespace": "t", "timeout": TIMEOUT, "lease": 60.0, "on_event": events.append, **options}
    async with Dedup(server.url, **settings) as dedup, Dedup(server.url, namespace="t", timeout=5.0) as other:
        await asyncio.gather(dedup.get("warm"), other.get("warm"))
        both = Two(dedup, other, wait_until, server)
        both.events = events
        yield both


async def by_claim(dedup: Dedup, key: str) -> Claim:
    return await dedup.claim(key)


async def by_waiting(dedup: Dedup, key: str) -> Claim:
    """Its time is over when its first look is given up, so there is no second look."""
    return await dedup.claim(key, wait=TIMEOUT / 2)


async def by_list(dedup: Dedup, key: str) -> list[Claim]:
    return await dedup.claim_many([key, f"{key}-beside"])


async def by_context(dedup: Dedup, key: str) -> None:
    async with dedup.claim(key, renew=True):
        raise AssertionError("its body must not run")


async def by_lock(dedup: Dedup, key: str) -> None:
    async with dedup.lock(key):
        raise AssertionError("its body must not run")


WAYS: list[Ask] = [by_claim, by_waiting, by_list, by_context, by_lock]


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_claim_that_timed_out_is_undone_in_either_loop(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil, new_loop: Callable[[], Any]
) -> None:
    async def lose_one() -> None:
        async with two(redis_server, wait_until) as both:
            await both.loses(by_claim, "k")
            await both.taken("k")

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(lose_one())


async def test_a_list_that_is_cancelled_while_redis_hangs_is_undone(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil
) -> None:
    """It waited for one key more: what it took is given back, though the release cannot even be sent by then."""
    async with two(redis_server, wait_until) as both:
        assert (await both.other.claim("busy", lease=60)).acquired
        waiting = asyncio.create_task(both.dedup.claim_many(["free", "busy"], wait=30))
        await wait_until(lambda: both.other.get("free"), description="the list has taken what was free")
        with redis_server.frozen():
            while both.dedup.breaker is BreakerState.CLOSED:
                with pytest.raises(UnavailableError):
                    await both.dedup.claim("another")
            waiting.cancel()
            with pytest.raises((asyncio.CancelledError, UnavailableError)):
                await waiting
        await both.taken("free")


async def test_claims_are_undone_soon_after_the_breaker_closed(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil
) -> None:
    async with two(redis_server, wait_until) as both:
        keys: list[str] = []
        with redis_server.frozen():
            while both.dedup.breaker is BreakerState.CLOSED:
                keys.append(f"k{len(keys)}")
                with suppress(UnavailableError):
                    await by_claim(both.dedup, keys[-1])
        await wait_until(
            lambda: both.dedup.breaker is BreakerState.CLOSED, description="the breaker has closed"
        )
        for key in keys:
            await both.taken(key)


async def test_what_its_owner_asked_for_again_is_not_undone(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil
) -> None:
    """At every moment between the first answer of Redis and the undoing."""
    async with two(redis_server, wait_until) as both:
        for number in range(10):
            key = f"k{number}"
            error = await both.loses(by_claim, key)
            assert error.owner is not None
            for _ in range(number):
                await asyncio.sleep(0)
            claim = await both.dedup.claim(key, owner=error.owner)
            assert claim.acquired
            await both.settled_down()
            assert await both.is_held(key)
            again = await both.dedup.claim(key, owner=error.owner)
            assert (again.fence, again.attempt) == (claim.fence, claim.attempt)
            await claim.complete("done")


async def test_the_error_of_a_claim_names_its_owner(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil
) -> None:
    async with two(redis_server, wait_until) as both:
        token = await both.other.tokens.issue()
        held = await both.dedup.claim("held")
        machine = both.dedup.machine("m", initial="a", transitions={"a": ("b",), "b": ()})
        ways: list[Ask] = [*WAYS, lambda dedup, _: dedup.tokens.redeem(token), named_once]
        with redis_server.frozen():
            for ask in ways:
                with pytest.raises(UnavailableError) as info:
                    await ask(both.dedup, "k")
                assert info.value.owner
            for other in (held.release(), both.dedup.get("k"), both.dedup.forget("k"), both.dedup.tokens.issue(),
                          machine.transition("1", to="b")):  # fmt: skip
                with pytest.raises(UnavailableError) as info:
                    await other
                assert info.value.owner is None


async def named_once(dedup: Dedup, key: str) -> None:
    @dedup.once(key=lambda: key)
    async def work() -> None:
        raise AssertionError("it must not run")

    await work()


def test_the_error_of_a_synchronous_claim_names_its_owner(redis_url: str, redis_server: RedisServer) -> None:
    with synchronous.Dedup(redis_url, namespace="t", timeout=TIMEOUT) as dedup:
        dedup.get("warm")
        with redis_server.frozen(), pytest.raises(UnavailableError) as info:
            dedup.claim("k")
        assert info.value.owner is not None
        claim = dedup.claim("k", owner=info.value.owner)
        assert claim.acquired


async def test_a_forked_child_leaves_what_was_given_up_to_its_parent(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil
) -> None:
    """It cannot ask the store, and would try for ever in its copy of the loop."""
    async with two(redis_server, wait_until) as both:
        await both.loses(by_claim, "k")
        assert len(both.undo) == 1
        child = os.fork()
        if not child:
            os._exit(len(both.undo))
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        await both.taken("k")
