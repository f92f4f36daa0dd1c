"""A claim was given up in a freeze, the server executed it afterwards, and its key was held for nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fastdedup import Claim, Dedup, LocalLRU, UnavailableError
from fastdedup.events import Conflict, Event, UndoOverflow

from ..servers import RedisServer

WaitUntil = Callable[..., Any]
TIMEOUT = 0.3
LEASE = 600
"""Seconds: what is not undone stays."""


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer()
    try:
        yield server.start()
    finally:
        server.stop()


@asynccontextmanager
async def frozen(server: RedisServer, **options: Any) -> AsyncIterator[Dedup]:
    """A gate that knows its server well, which is frozen now."""
    async with Dedup(server.url, **{"namespace": "t", "timeout": TIMEOUT, **options}) as dedup:
        await dedup.claim("warm", lease=LEASE)
        server.freeze()
        yield dedup


async def give_up(dedup: Dedup, *keys: str) -> list[UnavailableError]:
    errors = await asyncio.gather(*(ask(dedup, key) for key in keys), return_exceptions=True)
    assert all(isinstance(error, UnavailableError) for error in errors)
    return errors  # type: ignore[return-value]


async def ask(dedup: Dedup, key: str, **options: Any) -> Claim:
    return await dedup.claim(key, lease=LEASE, **options)


def waiting(dedup: Dedup) -> int:
    return len(dedup._namespace.connection.undo)


def states(server: RedisServer) -> dict[str, str]:
    """Return the state of each record."""
    with server.client() as raw:
        return {key.decode()[3:]: chr(raw.getrange(key, 1, 1)[0]) for key in raw.keys("t:=*")}  # type: ignore[union-attr]


async def undone(server: RedisServer, dedup: Dedup, wait_until: WaitUntil) -> dict[str, str]:
    """Thaw; return the records once nothing is left to be undone."""
    server.thaw()
    await wait_until(lambda: waiting(dedup) == 0, description="all is undone")
    return {key: state for key, state in states(server).items() if key != "warm"}


async def test_thousands_that_were_given_up_are_released(server: RedisServer, wait_until: WaitUntil) -> None:
    """More than one batch, and more than one look."""
    async with frozen(server) as dedup:
        await give_up(dedup, *(f"k{n}" for n in range(3000)))
        left = await undone(server, dedup, wait_until)
        assert set(left.values()) <= {"R"}


async def test_a_claim_that_the_policy_granted_is_kept(server: RedisServer, wait_until: WaitUntil) -> None:
    """Its owner is the one that the store knows, too."""
    policy = LocalLRU()
    async with frozen(server, on_unavailable=policy) as dedup:
        claim = await ask(dedup, "k")
        assert (claim.acquired, claim.degraded, waiting(dedup)) == (True, True, 0)
        await undone(server, dedup, wait_until)
        await wait_until(lambda: policy.lines == 0, description="the record is in the store")
        assert states(server)["k"] == "P"
        assert not (await ask(dedup, "k")).acquired
        await claim.complete("done")


async def test_what_the_policy_gave_to_another_is_undone(server: RedisServer, wait_until: WaitUntil) -> None:
    """The first caller went away; the second has the key by the policy, and the store executes the first."""
    policy, events = LocalLRU(), list[Event]()
    async with frozen(server, on_unavailable=policy, on_event=events.append) as dedup:
        first = asyncio.create_task(ask(dedup, "k"))
        engine = dedup._namespace.connection.engine
        assert engine is not None
        await wait_until(lambda: engine.in_flight > 0, description="it was sent")
        first.cancel()
        second = await ask(dedup, "k", owner="second")
        assert (second.acquired, second.degraded) == (True, True)
        await undone(server, dedup, wait_until)
        await wait_until(lambda: policy.lines == 0, description="the record is in the store")
        # Where the first was found before it was released, the second is lost, and was told so by an event.
        lost = any(isinstance(event, Conflict) and event.ours == "second" for event in events)
        assert states(server)["k"] == ("R" if lost else "P")


async def test_closing_undoes_what_is_left(server: RedisServer) -> None:
    async with frozen(server, timeout=2.0) as dedup:  # so long closing tries, which a busy machine may need
        await give_up(dedup, *(f"k{n}" for n in range(600)))
        server.thaw()
    assert {state for key, state in states(server).items() if key != "warm"} <= {"R"}


async def test_closing_does_not_wait_for_a_frozen_server(server: RedisServer) -> None:
    async with frozen(server) as dedup:
        await give_up(dedup, *(f"k{n}" for n in range(600)))
        started = time.monotonic()
    assert time.monotonic() - started < 10 * TIMEOUT


async def test_the_oldest_is_dropped_with_an_event(server: RedisServer, wait_until: WaitUntil) -> None:
    events: list[Event] = []
    async with frozen(server, on_event=events.append) as dedup:
        dedup._namespace.connection.undo._most = 2
        await give_up(dedup, "a", "b", "c")
        assert [event.key for event in events if isinstance(event, UndoOverflow)] == ["a"]
        assert await undone(server, dedup, wait_until) == {"a": "P", "b": "R", "c": "R"}
