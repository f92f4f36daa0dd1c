"""Homes of several servers: a Sentinel group and a Cluster. Workers reach their servers directly."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import redis
import redis.exceptions

from tests.topologies import ClusterGroup, Group, SentinelGroup

from .guard import Guard
from .proxy import Gate

T = TypeVar("T")
PATIENCE = 20.0
"""Seconds that a group has to do what it is expected to."""


class GroupHome:
    """What the two have in common. All that blocks runs in a thread, as the driver's loop has other work."""

    group: Any

    def __init__(self, group: Group, guard: Guard) -> None:
        self.group = group
        self.gates: list[Gate] = []
        self._guard = guard

    async def start(self) -> GroupHome:
        self._guard.folder(self.group.folder)
        await asyncio.to_thread(self.group.start)
        return self

    def url(self, slot: int, *, proxied: bool) -> str:
        return str(self.group.url)

    async def reset(self) -> None:
        """Every member lives, none stands still, and all are in step."""
        for member in self.group.members:
            member.thaw() if member.alive else member.spawn()
        await self.until(self.group.healthy)

    async def until(self, predicate: Callable[[], T]) -> T:
        """Wait for a predicate that asks servers, of which some may be down.

        Raises:
            TimeoutError: it does not come true.
        """
        async with asyncio.timeout(PATIENCE):
            while True:
                with contextlib.suppress(redis.exceptions.RedisError, OSError, AssertionError, StopIteration):
                    if value := await asyncio.to_thread(predicate):
                        return value
                await asyncio.sleep(0.02)

    async def aclose(self) -> None:
        await asyncio.to_thread(self.group.stop)

    # Canaries

    async def put_canaries(self, mark: str, count: int) -> None:
        await asyncio.to_thread(self._put, mark, count)

    async def lost_canaries(self, mark: str, count: int) -> int:
        return await self.until(lambda: self._lost(mark, count) + 1) - 1

    def _put(self, mark: str, count: int) -> None:
        with self.raw() as raw:
            for n in range(count):
                raw.set(f"canary:{mark}:{n}", mark, px=60_000)

    def _lost(self, mark: str, count: int) -> int:
        with self.raw() as raw:
            return sum(not raw.exists(f"canary:{mark}:{n}") for n in range(count))

    def raw(self) -> Any:
        """A client of the data as a whole."""
        raise NotImplementedError


class SentinelHome(GroupHome):
    """A primary, two replicas, three sentinels."""

    group: SentinelGroup

    def __init__(self, guard: Guard) -> None:
        super().__init__(SentinelGroup(), guard)

    async def start(self) -> SentinelHome:
        await super().start()
        # Four of these after a replica became a primary, sentinels that have not heard why turn it back.
        # The one that appointed it looks only once a second.
        for sentinel in self.group.sentinels:
            with contextlib.suppress(redis.exceptions.ResponseError):  # Redis before 7.0
                await asyncio.to_thread(sentinel.ask, "SENTINEL", "DEBUG", "PUBLISH-PERIOD", 400)
        return self

    def raw(self) -> redis.Redis:
        return self.group.primary().client()


class ClusterHome(GroupHome):
    """Three primaries with a replica each."""

    group: ClusterGroup

    def __init__(self, guard: Guard) -> None:
        super().__init__(ClusterGroup(), guard)

    def raw(self) -> redis.RedisCluster:
        return self.group.raw()
