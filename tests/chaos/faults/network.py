"""Faults of the way to a server: what a `Gate` can do to connections."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from ..proxy import Mode
from ..steps import KINDS
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


class LateReplies(Gated):
    """The server acts at once; every third reply comes after the deadline, or never."""

    name = "late replies"
    mode = Mode.LATE
    audited = True
    mix: ClassVar[Mapping[str, int]] = {**KINDS, "giveup": 30, "burn": 40, "machine": 20}

    async def inject(self, scene: Scene) -> None:
        for gate in self.gates(scene):
            gate.late = partial(self.late, scene)
        await super().inject(scene)

    def late(self, scene: Scene) -> tuple[float, bool]:
        """For how many seconds the next reply is held back, and whether it passes then."""
        if scene.draw.random() < 0.67:
            return 0.0, True
        return scene.timeout * scene.draw.uniform(1.1, 2.0), scene.draw.random() < 0.5


class RoundAndRound(LateReplies):
    """Single replies are lost while machines go round: a call that is sent again finds its move undone by others."""

    name = "cyclic machines"
    audited = False
    mix: ClassVar[Mapping[str, int]] = {**KINDS, "machine": 300}

    def late(self, scene: Scene) -> tuple[float, bool]:
        lost = scene.draw.random() < 0.1
        return (scene.draw.uniform(0.0, 0.2) * scene.timeout, False) if lost else (0.0, True)


class SameOwners(Refused):
    """Processes share the names of their owners, as twins of one job do, before an outage and in it."""

    name = "same owners in an outage"
    mix: ClassVar[Mapping[str, int]] = {**KINDS, "named": 150}
