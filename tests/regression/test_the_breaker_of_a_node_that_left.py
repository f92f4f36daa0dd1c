"""A node's breaker was open when the node left the Cluster, and no event said that it closed: metrics showed it open.

Each BreakerOpened is followed by one BreakerClosed of the same node.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from fastdedup import BreakerState, Dedup, UnavailableError
from fastdedup.events import BreakerClosed, BreakerOpened, Event
from fastdedup.stores.redis.cluster.slot_table import slot_of

from ..servers import RedisServer
from ..topologies import ClusterGroup, until

WaitUntil = Callable[..., Any]
TIMEOUT = 0.3


@pytest.fixture
def cluster() -> Iterator[ClusterGroup]:
    cluster = ClusterGroup()
    try:
        yield cluster.start()
    finally:
        cluster.stop()


async def opened(dedup: Dedup, key: str) -> None:
    """Claim until the breaker of the key's node is open."""
    while dedup.breaker is BreakerState.CLOSED:
        with suppress(UnavailableError):
            await dedup.claim(key)


async def test_a_breaker_closes_when_its_node_is_replaced(
    cluster: ClusterGroup, wait_until: WaitUntil
) -> None:
    events: list[Event] = []
    victim = cluster.owner(slot_of(b"t:=key"))
    until(lambda: cluster.in_step(victim, 1), "the replica is in step")
    async with Dedup(cluster.url, namespace="t", timeout=TIMEOUT, on_event=events.append) as dedup:
        await dedup.get("key")
        victim.kill()
        await opened(dedup, "key")
        closed = await wait_until(
            lambda: [event for event in events if isinstance(event, BreakerClosed)],
            description="the breaker of the node that left is closed",
            deadline=20.0,
        )
        assert (await dedup.claim("key", wait=10.0)).acquired
        assert dedup.breaker is BreakerState.CLOSED
        assert str(victim.port) in closed[0].store
        assert closed[0].lasted > 0.0
    assert Counter(event.store for event in events if isinstance(event, BreakerOpened)) == Counter(
        event.store for event in events if isinstance(event, BreakerClosed)
    )


async def test_closing_the_gate_reports_no_closed_breaker() -> None:
    events: list[Event] = []
    server = RedisServer()
    try:
        await asyncio.to_thread(server.start)
        async with Dedup(server.url, timeout=TIMEOUT, on_event=events.append) as dedup:
            server.kill()
            await opened(dedup, "key")
    finally:
        server.stop()
    assert [event for event in events if isinstance(event, BreakerClosed)] == []
