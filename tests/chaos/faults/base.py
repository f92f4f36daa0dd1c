"""What a fault is, and what it acts upon."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import redis.exceptions

from ..crew import Crew, Member


@dataclass(slots=True)
class Scene:
    """What a fault acts upon in one run. `seconds` is how long it shall last; `draw` is the run's own."""

    home: Any
    crew: Crew
    namespace: str
    """Prefix of the run's keys."""
    seconds: float
    timeout: float
    """Seconds that the workers' operations have."""
    draw: random.Random
    restart: Callable[[Member], Coroutine[Any, Any, None]]
    """Brings a killed worker back into the run."""
    stalled: dict[int, float] = field(default_factory=dict)
    """Seconds for which a worker itself stood still, by slot: its operations may take that much longer."""
    usable: int | None = None
    """When (ns) there was a server to turn to again, where that was before `heal` ended."""
    steps: list[tuple[int, int]] = field(default_factory=list)
    """The spans (ns, ns) in which the server's clock was set back."""
    _work: asyncio.Task[None] | None = None
    _calm: asyncio.Event = field(default_factory=asyncio.Event)

    def repeat(self, act: Callable[[], Any], pause: float) -> None:
        """Do something over and over until `calm`."""

        # Told to end, not cancelled: redis-py may take a cancellation for a timeout of its own.
        async def go() -> None:
            while not self._calm.is_set():
                outcome = act()
                if asyncio.iscoroutine(outcome):
                    await outcome
                await asyncio.wait([calm], timeout=pause)

        calm = asyncio.create_task(self._calm.wait())
        self.background(go())

    def background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Let something go on that ends by itself, or when told; `calm` waits for it."""

        async def go() -> None:
            with contextlib.suppress(redis.exceptions.RedisError, OSError):
                await work

        self._work = asyncio.create_task(go())

    async def calm(self) -> None:
        """End what was repeated, and wait for what ends by itself."""
        self._calm.set()
        if self._work is not None:
            await self._work

    def anyone(self) -> Member:
        return self.draw.choice(self.crew.members)


class Fault:
    """Base of all."""

    name: ClassVar[str]
    home: ClassVar[str] = "plain"
    keeps_data: ClassVar[bool] = True
    proxied: ClassVar[bool] = False
    """Workers connect through their gates."""
    options: ClassVar[dict[str, Any]] = {}
    """What the workers' `Dedup` is given beside the usual."""
    mix: ClassVar[Mapping[str, int]] = {}
    """How often each kind of step comes beside the usual, where that is not said by `steps.KINDS`."""
    audited: ClassVar[bool] = False
    """The run goes on for a second and more, then what was given up is looked at."""
    replaced: ClassVar[bool] = False
    """After `heal` there is a replacement, and what failed still fails: whoever is refused has not found it."""
    healthy: ClassVar[bool] = False
    """The store is well all through: whoever is refused has found an outage that was none."""

    async def inject(self, scene: Scene) -> None:
        raise NotImplementedError

    async def heal(self, scene: Scene) -> None:
        """End the trouble. What goes on in the background ends here, unless it ends by itself."""
        await scene.calm()
