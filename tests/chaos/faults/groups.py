"""Faults of groups of servers: primaries that die, freeze or hand over, slots that move.

Redis replicates asynchronously: where a primary goes without handing over, writes that it had
acknowledged may be gone. Only a Cluster's own failover and the moving of slots lose nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, ClassVar

import redis.exceptions

from tests.topologies import ClusterGroup, Member, SentinelGroup

from .base import Fault, Scene


class SentinelKilled(Fault):
    """The primary is killed; the sentinels appoint another."""

    name = "sentinel: primary killed"
    home = "sentinel"
    keeps_data = False

    async def inject(self, scene: Scene) -> None:
        self._primary = await asyncio.to_thread(scene.home.group.primary)
        await asyncio.to_thread(self._primary.kill)

    async def heal(self, scene: Scene) -> None:
        group = scene.home.group
        await scene.home.until(lambda: group.primary() not in (self._primary, None) and group.primary().up())


class SentinelFrozen(SentinelKilled):
    """The primary stands still until another is appointed, and then goes on as if it were the primary."""

    name = "sentinel: primary frozen"

    async def inject(self, scene: Scene) -> None:
        self._primary = await asyncio.to_thread(scene.home.group.primary)
        self._primary.freeze()

    async def heal(self, scene: Scene) -> None:
        await super().heal(scene)
        scene.usable = time.monotonic_ns()
        self._primary.thaw()
        # Until it is told that it is a replica, what it acknowledges is lost.
        await scene.home.until(lambda: self._primary.ask("ROLE")[0] == b"slave")


class SentinelKilledWait(SentinelKilled):
    """The same, and each write waits for a replica."""

    name = "sentinel: primary killed + WAIT"
    options: ClassVar[dict[str, Any]] = {"replicas": 1}


class SentinelFrozenWait(SentinelFrozen):
    """The same, and each write waits for a replica: the old primary has none any more, which is told."""

    name = "sentinel: primary frozen + WAIT"
    options: ClassVar[dict[str, Any]] = {"replicas": 1}


class SentinelFailover(Fault):
    """The sentinels are told to appoint another primary; the present one does not wait for it."""

    name = "sentinel: failover"
    home = "sentinel"
    keeps_data = False

    async def inject(self, scene: Scene) -> None:
        group = scene.home.group
        self._primary = await asyncio.to_thread(group.primary)
        await scene.home.until(lambda: self._appointed(group))

    async def heal(self, scene: Scene) -> None:
        scene.usable = time.monotonic_ns()
        await scene.home.until(lambda: self._primary.ask("ROLE")[0] == b"slave")

    def _appointed(self, group: SentinelGroup) -> bool:
        """Ask for it, again if need be: a failover soon after another is refused, or given up."""
        if group.primary() is not self._primary:
            return True
        with contextlib.suppress(redis.exceptions.ResponseError):
            group.sentinels[0].ask("SENTINEL", "FAILOVER", group.SERVICE)
        return False


class ReplicaTakesOver(Fault):
    """Something befalls a primary of the Cluster, and its replica takes over."""

    home = "cluster"

    async def inject(self, scene: Scene) -> None:
        primaries = await asyncio.to_thread(scene.home.group.primaries)
        self._primary = scene.draw.choice(primaries)
        await asyncio.to_thread(self.strike, scene.home.group, self._primary)

    async def heal(self, scene: Scene) -> None:
        await scene.home.until(lambda: self._primary not in scene.home.group.primaries())

    def strike(self, group: ClusterGroup, primary: Member) -> None:
        raise NotImplementedError


class ClusterKilled(ReplicaTakesOver):
    """A primary is killed; its replica takes over."""

    name = "cluster: primary killed"
    keeps_data = False

    def strike(self, group: ClusterGroup, primary: Member) -> None:
        primary.kill()


class ClusterFrozen(ReplicaTakesOver):
    """A primary stands still, its replica takes over, and nobody thaws it before the run is over."""

    name = "cluster: primary frozen"
    keeps_data = False
    audited = True
    replaced = True

    def strike(self, group: ClusterGroup, primary: Member) -> None:
        primary.freeze()


class ClusterKilledWait(ClusterKilled):
    """The same, and each write waits for a replica."""

    name = "cluster: primary killed + WAIT"
    options: ClassVar[dict[str, Any]] = {"replicas": 1}


class ClusterFailover(ReplicaTakesOver):
    """A replica takes over in agreement with its primary, which waits for it."""

    name = "cluster: failover"

    def strike(self, group: ClusterGroup, primary: Member) -> None:
        group.replica_of(primary).ask("CLUSTER", "FAILOVER")


class SlotsMoved(Fault):
    """Slots that are in use move from primary to primary, key by key."""

    name = "cluster: slots moved"
    home = "cluster"

    async def inject(self, scene: Scene) -> None:
        scene.repeat(lambda: asyncio.to_thread(self._move, scene), 0.02)

    def _move(self, scene: Scene) -> None:
        group = scene.home.group
        source, to = scene.draw.sample(group.primaries(), 2)
        for _ in range(50):
            key = source.ask("RANDOMKEY")
            if key is not None and key.startswith(scene.namespace.encode()):
                slot = source.ask("CLUSTER", "KEYSLOT", key)
                with contextlib.suppress(redis.exceptions.ResponseError):
                    group.migrate_slot(slot, to)
                return


class SlotsMovedBySlot(SlotsMoved):
    """The same, where the servers refuse undeclared keys."""

    name = "cluster: slots moved, batches by slot"
    options: ClassVar[dict[str, Any]] = {"by_slot": True}
