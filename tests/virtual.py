"""Virtual time: an event loop whose clock jumps to the next timer, and a way to a store on it.

So an outage of minutes with all its pauses, deadlines and leases takes milliseconds, and runs the same each time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fastdedup import UnavailableError
from fastdedup.kernel.operations import Op, Reply
from fastdedup.kernel.verbs import Verb
from fastdedup.stores.memory import MemoryStore

EPOCH = 1_700_000_000.0


class _JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Never waits: what it should have waited is added to the clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("the loop would wait for ever: nothing is scheduled")
        found = super().select(0)
        if not found and timeout > 0:
            self.now += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, which starts at 0."""

    def __init__(self) -> None:
        self._virtual = _JumpingSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def block(self, seconds: float) -> None:
        """Let time pass in which the loop does nothing, as while a careless callback sleeps."""
        self._virtual.now += seconds

    def clock(self) -> float:
        """Seconds since 1970, for stores."""
        return EPOCH + self._virtual.now


class Link:
    """A process's way to a store: it may be cut, freeze, or be slow.

    Attributes:
        down: every batch is refused at once.
        latency: seconds from sending to taking effect, and again to the reply.
    """

    name = "link"

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.down = False
        self.latency = 0.001
        self._frozen = False

    async def open(self) -> None:
        """Nothing to do."""

    async def aclose(self) -> None:
        """Nothing to do: the store is shared."""

    async def listen(self, on_freed: Callable[[bytes | None], None]) -> None:
        await self._store.listen(on_freed)

    def freeze(self) -> None:
        """Take what is sent from now on, and answer nothing."""
        self._frozen = True

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        await asyncio.sleep(self.latency)
        if self._frozen:
            await asyncio.Event().wait()
        if self.down:
            raise UnavailableError("the link is down")
        replies = await self._store.execute(verb, ops)
        await asyncio.sleep(self.latency)
        if self.down:
            raise UnavailableError("the reply was lost")
        return replies


def virtual_loop() -> VirtualLoop:
    """Return the running loop, which must be in virtual time."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


async def pass_time(seconds: float) -> None:
    """Let seconds of virtual time pass: no test waits for so long."""
    virtual_loop()
    await asyncio.sleep(seconds)


virtual = pytest.mark.virtual_time
"""Run an async test in virtual time; any task left behind fails it."""
