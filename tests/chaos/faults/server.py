"""Faults of one server: killed, frozen, slow, full, or refusing to serve."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import ClassVar

from ..steps import KINDS
from .base import Fault, Scene


class KillAof(Fault):
    """Killed with -9 and started again; every write was in the append-only file before its reply."""

    name = "kill -9 with AOF"
    home = "aof"

    async def inject(self, scene: Scene) -> None:
        await scene.home.down()

    async def heal(self, scene: Scene) -> None:
        await scene.home.up()


class KillEmpty(KillAof):
    """The same without a file: it comes back empty."""

    name = "kill -9 without AOF"
    home = "plain"
    keeps_data = False


class Freeze(Fault):
    """SIGSTOP: connections stand, nobody answers; afterwards what was sent is executed late."""

    name = "freeze"

    async def inject(self, scene: Scene) -> None:
        scene.home.server.freeze()

    async def heal(self, scene: Scene) -> None:
        scene.home.server.thaw()


class ClientPause(Fault):
    """CLIENT PAUSE of everything, or of writes."""

    name = "client pause"

    async def inject(self, scene: Scene) -> None:
        self._over = asyncio.get_running_loop().time() + scene.seconds
        mode = scene.draw.choice(("ALL", "WRITE"))
        await scene.home.ask("CLIENT", "PAUSE", round(scene.seconds * 1000), mode)

    async def heal(self, scene: Scene) -> None:
        await asyncio.sleep(max(self._over - asyncio.get_running_loop().time(), 0.0))


class DebugSleep(Fault):
    """DEBUG SLEEP: one slow command holds up all others."""

    name = "debug sleep"

    async def inject(self, scene: Scene) -> None:
        scene.background(scene.home.ask("DEBUG", "SLEEP", str(scene.seconds)))


class ScriptFlush(Fault):
    """SCRIPT FLUSH again and again under load."""

    name = "script flush"

    async def inject(self, scene: Scene) -> None:
        scene.repeat(lambda: scene.home.ask("SCRIPT", "FLUSH", scene.draw.choice(("SYNC", "ASYNC"))), 0.01)


Command = tuple[str | int, ...]
KILL_CLIENTS: Command = ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


class Configured(Fault):
    """Commands bring the trouble about, and one ends it."""

    begin: ClassVar[tuple[Command, ...]]
    end: ClassVar[Command]

    async def inject(self, scene: Scene) -> None:
        for command in self.begin:
            await scene.home.ask(*command)

    async def heal(self, scene: Scene) -> None:
        await scene.home.ask(*self.end)


class OutOfMemory(Configured):
    """maxmemory below what is used, and nothing may be evicted: writes are refused."""

    name = "oom"
    begin = (
        ("CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1mb"),
        ("CONFIG", "SET", "maxmemory", "100kb"),
    )
    end = ("CONFIG", "SET", "maxmemory", 0)


class ReadOnly(Configured):
    """A replica of nobody: it refuses writes, and keeps its data."""

    name = "readonly"
    begin = (("REPLICAOF", "127.0.0.1", 1),)
    end = ("REPLICAOF", "NO", "ONE")


class MaxClients(Configured):
    """Connections are ended, and new ones refused."""

    name = "max clients"
    begin = (("CONFIG", "SET", "maxclients", 1), KILL_CLIENTS)
    end = ("CONFIG", "SET", "maxclients", 10_000)


class Password(Configured):
    """The password is changed under the clients, and changed back."""

    name = "password"
    begin = (("CONFIG", "SET", "requirepass", "another"), KILL_CLIENTS)
    end = ("CONFIG", "SET", "requirepass", "")


class Loading(Fault):
    """DEBUG RELOAD, slowed down: -LOADING for a while, then the same data."""

    name = "loading"

    async def inject(self, scene: Scene) -> None:
        keys = max(int(await scene.home.ask("DBSIZE")), 1)
        # It serves events only every so many bytes of its file.
        await scene.home.ask("CONFIG", "SET", "loading-process-events-interval-bytes", 1024)
        await scene.home.ask("CONFIG", "SET", "key-load-delay", round(scene.seconds * 1e6 / keys))
        scene.background(scene.home.ask("DEBUG", "RELOAD"))

    async def heal(self, scene: Scene) -> None:
        await super().heal(scene)
        await scene.home.ask("CONFIG", "SET", "key-load-delay", 0)


class ServerClockBack(Fault):
    """The server's clock is set back, again and again. It never jumps ahead: that would end leases early.

    It stays behind until the next run.
    """

    name = "server's clock set back"
    home = "clock"
    healthy = True
    mix: ClassVar[Mapping[str, int]] = {**KINDS, "lock": 40, "forget": 80}

    async def inject(self, scene: Scene) -> None:
        def back() -> None:
            before = time.monotonic_ns()
            scene.home.clock.back(scene.draw.choice((0.02, 0.1, 0.5, 2.0)))
            scene.steps.append((before, time.monotonic_ns()))

        scene.repeat(back, 0.15)
