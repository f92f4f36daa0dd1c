"""An engine for each part of a store that is made of parts, such as a Cluster's nodes: they queue and fail apart."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import DedupError, UsageError
from ..model import BreakerState
from ..protocol.operations import ClaimOp, Op, Reply
from ..stores.base import ShardedStore, Store
from .engine import Engine, wrong_loop

MakeEngine = Callable[[Store], Engine]

_LOOK_EVERY = 1.0
"""Seconds between two looks for parts that have gone, whose engines would probe for ever."""


class ShardedEngine:
    """What `Engine` is for one store, for a `ShardedStore`: each operation goes to the engine of its key's part.

    A node that hangs makes nobody wait but those who ask for its keys, and its breaker opens alone.
    """

    def __init__(self, store: ShardedStore, make_engine: MakeEngine) -> None:
        self._store = store
        self._make_engine = make_engine
        self._loop = asyncio.get_running_loop()
        # Mutable: the engines of the parts that exist; those of parts that have gone, until they are drained.
        self._engines: dict[Store, Engine] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._look: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that all of this belongs to."""
        return self._loop

    @property
    def pending(self) -> int:
        """Operations waiting or under way."""
        return sum(engine.pending for engine in self._engines.values())

    @property
    def in_flight(self) -> int:
        """Batches under way."""
        return sum(engine.in_flight for engine in self._engines.values())

    @property
    def breaker(self) -> BreakerState:
        """OPEN where no part answers, PARTLY_OPEN where some do not."""
        shards = self._store.shards()
        return together(
            self._engines[shard].breaker if shard in self._engines else BreakerState.CLOSED
            for shard in shards
        )

    def submit(self, op: Op, future: Any = None) -> asyncio.Future[Reply]:
        """As `Engine.submit`; UnavailableError also where no part is known to hold the key."""
        return self._engine(op.wire).submit(op, future)

    def claim(self, op: ClaimOp, future: Any = None) -> asyncio.Future[Reply]:
        """As `Engine.claim`."""
        return self._engine(op.wire).claim(op, future)

    def disown(self, op: ClaimOp) -> None:
        """As `Engine.disown`. Not for a claim that was never accepted, or whose part is out of reach by now."""
        if hasattr(op, "future"):
            # Never raises: its caller is being cancelled, and shall be. Then the lease ends by itself.
            with contextlib.suppress(DedupError):
                self._engine(op.wire).disown(op)

    async def drain(self) -> None:
        """As `Engine.drain`, all at once."""
        self._closed = True
        if self._look is not None:
            self._look.cancel()
        drains = [engine.drain() for engine in self._engines.values()]
        await asyncio.gather(*drains, *self._leaving)

    def _engine(self, wire: bytes) -> Engine:
        shard = self._store.shard(wire)
        engine = self._engines.get(shard)
        return self._begin(shard) if engine is None else engine

    def _begin(self, shard: Store) -> Engine:
        if asyncio.get_running_loop() is not self._loop:
            raise wrong_loop()  # an engine belongs to the loop that makes it
        if self._closed:
            raise UsageError("this Dedup is closed; open a new one")
        engine = self._engines[shard] = self._make_engine(shard)
        self._let_go()
        if self._look is None:
            self._look = self._loop.call_later(_LOOK_EVERY, self._look_around)
        return engine

    def _look_around(self) -> None:
        self._let_go()
        self._look = self._loop.call_later(_LOOK_EVERY, self._look_around)

    def _let_go(self) -> None:
        """Close the engines of parts that have gone. What they hold is answered first, as by any drain."""
        present = set(self._store.shards())
        for shard in [shard for shard in self._engines if shard not in present]:
            task = self._loop.create_task(self._engines.pop(shard).drain(), name="fastdedup-drain")
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)


def together(states: Iterable[BreakerState]) -> BreakerState:
    """Return the state of a whole from those of its parts; a whole without parts does not answer."""
    found = set(states) or {BreakerState.OPEN}
    return found.pop() if len(found) == 1 else BreakerState.PARTLY_OPEN
