"""Faults of the way to a server: what a `Gate` can do to connections."""

from __future__ import annotations

from typing import Any, ClassVar

from ..proxy import Mode
from .base import Fault, Scene


class Gated(Fault):
    """All gates, or some, in one mode."""

    proxied = True
    mode: ClassVar[Mode]

    def gates(self, scene: Scene) -> list[Any]:
        return list(scene.home.gates)

    async def inject(self, scene: Scene) -> None:
        for gate in self.gates(scene):
            gate.set(self.mode)

    async def heal(self, scene: Scene) -> None:
        await scene.calm()
        for gate in scene.home.gates:
            gate.reset()


class Refused(Gated):
    """Connections end at once, also new ones."""

    name = "refused"
    mode = Mode.REFUSED


class HalfOpen(Gated):
    """What is sent is gone, nobody says so, and the connections stay so for good."""

    name = "half-open"
    mode = Mode.SILENT


class Stalled(Gated):
    """Nothing passes; what was sent arrives afterwards, however stale."""

    name = "stalled"
    mode = Mode.STALLED


class Partition(Gated):
    """One worker alone loses the server."""

    name = "partition of one"

    async def inject(self, scene: Scene) -> None:
        gate = scene.draw.choice(scene.home.gates)
        gate.set(scene.draw.choice((Mode.SILENT, Mode.STALLED, Mode.REFUSED)))


class Cut(Gated):
    """All connections break, every now and then."""

    name = "cut"
    mode = Mode.OPEN

    async def inject(self, scene: Scene) -> None:
        await super().inject(scene)
        gates = self.gates(scene)
        scene.repeat(lambda: scene.draw.choice(gates).cut(), 0.02)


class ReplyDropped(Cut):
    """The server acts, its reply is lost, then the connection breaks."""

    name = "reply dropped"
    mode = Mode.MUTE


class ReplyTorn(Gated):
    """Half of a reply, then the connection breaks."""

    name = "reply torn"
    mode = Mode.TORN


class Delay(Gated):
    """Each stretch of bytes takes longer, up to well above the deadline."""

    name = "delay"

    async def inject(self, scene: Scene) -> None:
        for gate in self.gates(scene):
            gate.delay = scene.draw.choice((0.01, 0.05, 0.1, 0.3))
