"""Faults of the clients: processes that die or stand still, loops that are blocked, clocks that are wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import ClassVar

from ..board import SKEW
from ..history import SECOND
from ..steps import KINDS
from .base import Fault, Scene
from .server import Freeze

SKEWS = (-30, 30)
"""Seconds by which clocks of clients are wrong."""


class WorkerKilled(Fault):
    """A process dies at work; what it held ends with its leases."""

    name = "worker killed"

    async def inject(self, scene: Scene) -> None:
        self._member = scene.anyone()
        await self._member.kill()

    async def heal(self, scene: Scene) -> None:
        await scene.restart(self._member)


class WorkerFrozen(Fault):
    """A process stands still for longer than its leases, and goes on as if nothing had happened."""

    name = "worker frozen"

    async def inject(self, scene: Scene) -> None:
        self._member = scene.anyone()
        scene.stalled[self._member.slot] = scene.seconds + 0.5
        self._member.freeze()

    async def heal(self, scene: Scene) -> None:
        self._member.thaw()


class LoopBlocked(Fault):
    """A program blocks its own event loop."""

    name = "loop blocked"

    async def inject(self, scene: Scene) -> None:
        member = scene.anyone()
        scene.stalled[member.slot] = scene.seconds + 0.5
        member.tell({"do": "block", "seconds": scene.seconds})


class LoopBlockedBriefly(Fault):
    """Programs block their own loops again and again, for a little less than the deadline or a little more."""

    name = "loops blocked for about the timeout"
    healthy = True
    audited = True
    mix: ClassVar[Mapping[str, int]] = {**KINDS, "giveup": 40, "burn": 30, "block": 6}

    async def inject(self, scene: Scene) -> None:
        for member in scene.crew.members:
            scene.stalled[member.slot] = 4 * scene.timeout

        def block() -> None:
            seconds = scene.timeout * scene.draw.uniform(0.6, 2.0)
            scene.anyone().tell({"do": "block", "seconds": seconds})

        scene.repeat(block, scene.timeout)


class CallersGone(Freeze):
    """The server hangs, callers are told so or go away: what they had asked for is undone when it is back."""

    name = "callers gone in a freeze"
    audited = True
    mix: ClassVar[Mapping[str, int]] = {**KINDS, "giveup": 100, "burn": 40}


class ClockStep(Fault):
    """The clock of a client jumps."""

    name = "clock step"

    async def inject(self, scene: Scene) -> None:
        scene.crew.board[scene.anyone().slot, SKEW] = scene.draw.choice(SKEWS) * SECOND

    async def heal(self, scene: Scene) -> None:
        for member in scene.crew.members:
            scene.crew.board[member.slot, SKEW] = 0


class ClockStepInOutage(Freeze):
    """The clocks of clients jump while they answer by themselves."""

    name = "clock step in outage"

    async def inject(self, scene: Scene) -> None:
        await super().inject(scene)
        await asyncio.sleep(scene.seconds / 2)
        for member in scene.crew.members:
            scene.crew.board[member.slot, SKEW] += scene.draw.choice(SKEWS) * SECOND
