"""Waiters heard nothing after the node of their subscription had left the Cluster, until their owners' leases ended.

The connection stays, and the node goes on answering. But what other nodes publish does not reach it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastdedup import Claim, Dedup
from fastdedup.stores.redis.cluster.slot_table import slot_of

from ..topologies import ClusterGroup, Member, until

WaitUntil = Callable[..., Any]
SOON = 3.0
"""Seconds: to see that the node has left, and to subscribe elsewhere. The leases are ten times as long."""


@pytest.fixture
def cluster() -> Iterator[ClusterGroup]:
    group = ClusterGroup(replicas=0)
    try:
        yield group.start()
    finally:
        group.stop()


def subscribed(group: ClusterGroup) -> list[Member]:
    """Return the servers with a subscription."""
    return [member for member in group.members if b"sub=1" in member.ask("CLIENT", "LIST", "TYPE", "pubsub")]


def key_of(group: ClusterGroup, member: Member) -> str:
    """Return a key that a node holds."""
    return next(
        key for key in map(str, range(1000)) if group.owner(slot_of(b"t:=%b" % key.encode())) is member
    )


class Waiting:
    """A claim that waits for a key, and whose gate listens at `node`; another node holds the key."""

    def __init__(self, group: ClusterGroup, gate: Dedup) -> None:
        self._group = group
        self._gate = gate

    async def begin(self, wait_until: WaitUntil) -> None:
        """Subscribe by a first wait, find out where, then wait for another node's key."""
        await self._gate.claim("first")
        await self._gate.claim("first", owner="another", wait=0.1)
        (self.node,) = subscribed(self._group)
        self.others = [member for member in self._group.members if member is not self.node]
        key = key_of(self._group, self.others[0])
        self.claim = await self._gate.claim(key)
        self.waiter: asyncio.Task[Claim] = asyncio.create_task(self._waited(key))
        wakeups = self._gate._namespace.connection.wakeups
        await wait_until(lambda: wakeups._count, description="it waits")

    async def _waited(self, key: str) -> Claim:
        return await self._gate.claim(key, owner="another", wait=60.0)

    async def hears(self) -> None:
        """The owner settles, and the waiter is told."""
        await self.claim.complete("news")
        async with asyncio.timeout(SOON):
            assert (await self.waiter).result == "news"


def empty(group: ClusterGroup, node: Member, to: Member) -> None:
    """Give all slots of a node, which hold no keys, to another node; the rest learn it, as that has a newer epoch."""
    name = group._id(to)
    slots = next(span for span, owner in group.spans() if owner is node)
    to.ask("CLUSTER", "BUMPEPOCH")
    with to.client() as raw, raw.pipeline(transaction=False) as pipeline:
        for slot in slots:
            pipeline.execute_command("CLUSTER", "SETSLOT", slot, "NODE", name)
        pipeline.execute()
    until(
        lambda: all(node not in group._layout(member).values() for member in group.members),
        "all know that it has no slot",
    )


def forget(group: ClusterGroup, node: Member) -> None:
    """Let all others forget a node: they send it nothing any more."""
    name = group._id(node)
    for member in group.members:
        if member is not node:
            member.ask("CLUSTER", "FORGET", name)


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "forgotten only"])
async def test_waiters_hear_when_the_node_of_their_subscription_leaves(
    reset: bool, cluster: ClusterGroup, wait_until: WaitUntil
) -> None:
    """Its slots move away, then the others forget it: what `redis-cli --cluster del-node` does."""
    async with Dedup(cluster.url, namespace="t") as gate:
        waiting = Waiting(cluster, gate)
        await waiting.begin(wait_until)
        node = waiting.node
        await gate.forget("first")
        await asyncio.to_thread(empty, cluster, node, waiting.others[0])
        await asyncio.to_thread(forget, cluster, node)
        if reset:
            node.ask("CLUSTER", "RESET", "SOFT")
        await waiting.hears()
        await wait_until(lambda: subscribed(cluster) != [node], description="it listens elsewhere")


async def test_waiters_hear_when_the_node_of_their_subscription_is_cut_off(
    cluster: ClusterGroup, wait_until: WaitUntil
) -> None:
    """It knows the others no more, and does not take their messages. It keeps its slots, in every layout."""
    async with Dedup(cluster.url, namespace="t") as gate:
        waiting = Waiting(cluster, gate)
        await waiting.begin(wait_until)
        for name in [cluster._id(member) for member in waiting.others]:
            waiting.node.ask("CLUSTER", "FORGET", name)
        await waiting.hears()


async def test_a_subscription_stays_while_its_node_is_well(
    cluster: ClusterGroup, wait_until: WaitUntil
) -> None:
    """The node is looked after each second."""
    async with Dedup(cluster.url, namespace="t") as gate:
        waiting = Waiting(cluster, gate)
        await waiting.begin(wait_until)
        store: Any = gate._namespace.connection.store
        looks: list[bool] = []
        look = store._topology.is_cut_off

        async def looked(address: Any) -> bool:
            looks.append(await look(address))
            return looks[-1]

        store._topology.is_cut_off = looked
        connection = store._listener.connection
        await wait_until(lambda: len(looks) == 2, description="it was looked after twice")
        assert looks == [False, False]
        assert store._listener.connection is connection
        await waiting.hears()
