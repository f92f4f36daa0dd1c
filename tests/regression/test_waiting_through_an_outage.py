"""A claim with `wait=5` got UnavailableError at once when one of its looks fell into a failover of half a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from fastdedup import Dedup, LocalLRU, Outcome, UnavailableError
from fastdedup.events import Degraded, Event
from fastdedup.stores.redis.cluster.slot_table import slot_of

from ..servers import RedisServer
from ..sidecar.conftest import Serve, serve  # noqa: F401 -- a fixture
from ..topologies import ClusterGroup, until

WaitUntil = Callable[..., Any]
TIMEOUT = 0.3
LEASE = 600
"""Seconds: what is held by nobody stays held."""
LONG = 30.0
"""Seconds that a busy machine may add."""


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server that keeps its records when it is killed."""
    server = RedisServer("--appendonly", "yes", "--appendfsync", "always")
    try:
        yield server.start()
    finally:
        server.stop()


@asynccontextmanager
async def gate(server: RedisServer, **options: Any) -> AsyncIterator[tuple[Dedup, list[Event]]]:
    events: list[Event] = []
    settings = {"timeout": TIMEOUT, "on_event": events.append, "known_duplicates": 0, **options}
    async with Dedup(server.url, namespace="t", **settings) as dedup:
        await dedup.get("warm")
        yield dedup, events


def refused(events: list[Event]) -> bool:
    return any(isinstance(event, Degraded) and not event.answered for event in events)


async def claim(dedup: Dedup, wait: float) -> bool:
    return (await dedup.claim("k", lease=LEASE, wait=wait)).acquired


async def claim_many(dedup: Dedup, wait: float) -> bool:
    claims = await dedup.claim_many(["k", "l", "k"], lease=LEASE, wait=wait)
    return [claim.outcome for claim in claims] == ["acquired", "acquired", "in_progress"]


async def lock(dedup: Dedup, wait: float) -> bool:
    async with dedup.lock("k", lease=LEASE, wait=wait) as lock:
        return lock.fence > 0


async def once(dedup: Dedup, wait: float) -> bool:
    @dedup.once(key=lambda: "k", wait=wait)
    async def work() -> bool:
        return True

    return await work()


EACH_WAY = pytest.mark.parametrize("ask", [claim, claim_many, lock, once])


@EACH_WAY
async def test_a_refused_first_look_does_not_end_the_wait(
    server: RedisServer, ask: Callable[..., Any], wait_until: WaitUntil
) -> None:
    async with gate(server) as (dedup, events):
        server.kill()
        waiting = asyncio.create_task(ask(dedup, LONG))
        await wait_until(lambda: refused(events), description="a look is refused")
        await asyncio.to_thread(server.start)
        assert await waiting


@EACH_WAY
async def test_an_outage_longer_than_the_wait_ends_in_unavailable(
    server: RedisServer, ask: Callable[..., Any]
) -> None:
    """At the end of the wait, not at the first refusal; and never as IN_PROGRESS, as nobody holds the key."""
    async with gate(server) as (dedup, _):
        server.kill()
        began = time.monotonic()
        with pytest.raises(UnavailableError):
            await ask(dedup, 0.6)
        assert time.monotonic() - began >= 0.6


async def test_a_refused_later_look_does_not_end_the_wait(server: RedisServer, wait_until: WaitUntil) -> None:
    """Another owner was at work when the store went away, and is still when it is back."""
    async with gate(server) as (dedup, events), gate(server) as (other, _):
        held = await other.claim("k", lease=LEASE)
        waiting = asyncio.create_task(dedup.claim("k", wait=LONG))
        watched = dedup._namespace.connection.wakeups
        await wait_until(lambda: watched._count, description="it waits")
        server.kill()
        watched.freed(None)
        await wait_until(lambda: refused(events), description="a look is refused")
        await asyncio.to_thread(server.start)
        await held.complete("news")
        assert (await waiting).result == "news"


async def test_local_lru_answers_a_waiter_at_once(server: RedisServer) -> None:
    async with gate(server, on_unavailable=LocalLRU()) as (dedup, _):
        server.kill()
        began = time.monotonic()
        held = await dedup.claim("k", wait=LONG)
        assert (held.acquired, held.degraded) == (True, True)
        assert (await dedup.claim("k", wait=0.01)).outcome is Outcome.IN_PROGRESS
        assert time.monotonic() - began < LONG / 2


async def test_closing_the_gate_ends_the_wait(server: RedisServer, wait_until: WaitUntil) -> None:
    async with gate(server) as (dedup, events):
        server.kill()
        waiting = asyncio.create_task(dedup.claim("k", wait=LONG))
        await wait_until(lambda: refused(events), description="a look is refused")
        closing = time.monotonic()
    with pytest.raises(Exception, match="closed"):
        await waiting
    assert time.monotonic() - closing < LONG / 2


async def test_a_wait_outlasts_a_failover_of_its_node() -> None:
    cluster = ClusterGroup()
    try:
        await asyncio.to_thread(cluster.start)
        victim = cluster.owner(slot_of(b"t:=k"))
        await asyncio.to_thread(until, lambda: cluster.in_step(victim, 1), "the replica is in step")
        async with Dedup(cluster.url, namespace="t", timeout=TIMEOUT) as dedup:
            await dedup.get("k")
            victim.kill()
            held = await dedup.claim("k", wait=LONG)
            assert held.acquired
            await held.complete("done")
    finally:
        cluster.stop()


@pytest.mark.parametrize("wire", ["http", "resp"])
async def test_a_client_of_the_sidecar_waits_through_an_outage(
    server: RedisServer,
    serve: Serve,  # noqa: F811
    wire: str,
    wait_until: WaitUntil,
) -> None:
    events: list[Event] = []
    sidecar = serve(server.url, timeout=TIMEOUT, on_event=events.append)

    def over_http() -> str:
        with sidecar.http() as client:
            answer = client.post("/v1/claims", json={"key": "k", "wait": 30_000}, timeout=LONG)
        return str(answer.json()["outcome"])

    def over_resp() -> str:
        with redis.Redis(unix_socket_path=sidecar.path, socket_timeout=LONG) as client:
            return str(client.execute_command("FD.CLAIM", "k", "WAIT", 30_000)[0])

    server.kill()
    waiting = asyncio.create_task(asyncio.to_thread(over_http if wire == "http" else over_resp))
    await wait_until(lambda: refused(events), description="a look is refused")
    await asyncio.to_thread(server.start)
    assert "acquired" in await waiting
