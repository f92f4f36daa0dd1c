"""The systems that are put under load: how workers reach them, how faults act on them.

A home outlives many runs; `reset` brings it back to a known state between two.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Protocol

import redis.asyncio
import redis.exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from tests.servers import RedisServer

from .clock import Clock
from .guard import Guard
from .proxy import Gate

DEBUG = ("--enable-debug-command", "yes", "--loglevel", "warning")
AOF = ("--appendonly", "yes", "--appendfsync", "always")


class Home(Protocol):
    """What a run needs of a system."""

    gates: list[Gate]

    def url(self, slot: int, *, proxied: bool) -> str:
        """Where the worker in this slot connects."""
        ...

    async def reset(self) -> None:
        """Undo what is left of the last fault."""
        ...

    async def put_canaries(self, mark: str, count: int) -> None:
        """Write keys that nobody touches: they tell afterwards whether data was lost."""
        ...

    async def lost_canaries(self, mark: str, count: int) -> int:
        """Return how many of them are gone."""
        ...

    async def aclose(self) -> None: ...


class Single:
    """One redis-server, and a gate to it for each worker: by turns on a Unix socket and over TCP."""

    def __init__(self, *options: str, timed: bool = False) -> None:
        self.server = RedisServer(*DEBUG, *options)
        self.clock = Clock(self.server.folder / "clock") if timed else None
        self.server.env = {} if self.clock is None else self.clock.env
        self.gates: list[Gate] = []
        self._admin: redis.asyncio.Redis | None = None

    async def start(self, workers: int, guard: Guard) -> Single:
        guard.folder(self.server.folder)
        await self.up()
        sockets = [self.server.folder / f"gate-{n}.sock" if n % 2 else None for n in range(workers)]
        self.gates = [await Gate(path, self.server.socket).start() for path in sockets]
        return self

    async def up(self) -> None:
        """Start the server, again if need be, and wait until it answers."""
        # Its waiting blocks, and the gates live in this loop.
        await asyncio.to_thread(self.server.start)

    async def down(self) -> None:
        """Kill it as a crash would."""
        await asyncio.to_thread(self.server.kill)

    def url(self, slot: int, *, proxied: bool) -> str:
        return self.gates[slot].url if proxied else self.server.url

    async def ask(self, *command: str | int) -> Any:
        """Execute a command, over a connection of its own that is made again when it broke."""
        for last in (False, True):
            if self._admin is None:
                self._admin = redis.asyncio.Redis(
                    unix_socket_path=str(self.server.socket),
                    protocol=2,
                    single_connection_client=True,
                    retry=Retry(NoBackoff(), 0),
                )
            try:
                return await self._admin.execute_command(*command)
            except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
                await self._forget_admin()
                if last:
                    raise
        raise AssertionError

    async def reset(self) -> None:
        for gate in self.gates:
            gate.reset()
        if self.clock is not None:
            self.clock.reset()
        with contextlib.suppress(ProcessLookupError):
            self.server.thaw()
        try:
            await self.ask("PING")
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
            await self.up()  # a fault that could not be healed has left it dead
        await self.ask("CONFIG", "SET", "maxmemory", 0, "maxclients", 10_000, "requirepass", "")
        await self.ask("REPLICAOF", "NO", "ONE")

    async def put_canaries(self, mark: str, count: int) -> None:
        for n in range(count):
            await self.ask("SET", f"canary:{mark}:{n}", mark, "PX", 60_000)

    async def lost_canaries(self, mark: str, count: int) -> int:
        there = await self.ask("EXISTS", *(f"canary:{mark}:{n}" for n in range(count)))
        return count - int(there)

    async def aclose(self) -> None:
        for gate in self.gates:
            await gate.aclose()
        await self._forget_admin()
        await asyncio.to_thread(self.server.stop)

    async def _forget_admin(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            with contextlib.suppress(redis.exceptions.RedisError, OSError):
                await admin.aclose()


class Homes:
    """The homes that runs need, each started when first asked for."""

    def __init__(self, workers: int, guard: Guard) -> None:
        self._workers = workers
        self._guard = guard
        self._homes: dict[str, Home] = {}

    async def get(self, name: str) -> Home:
        if name not in self._homes:
            self._homes[name] = await self._make(name)
        return self._homes[name]

    async def aclose(self) -> None:
        for home in self._homes.values():
            await home.aclose()

    async def _make(self, name: str) -> Home:
        if name == "plain":
            return await Single().start(self._workers, self._guard)
        if name == "aof":
            return await Single(*AOF).start(self._workers, self._guard)
        if name == "clock":
            return await Single(timed=True).start(self._workers, self._guard)
        from .groups import ClusterHome, SentinelHome

        groups = {"sentinel": SentinelHome, "cluster": ClusterHome}
        return await groups[name](self._guard).start()
