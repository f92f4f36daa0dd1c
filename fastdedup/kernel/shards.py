"""An engine for each part of a store, such as the nodes of a Cluster: each part queues and fails alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any, Final

from ..errors import DedupError, UnavailableError
from ..model import BreakerState
from .answers import closed, wrong_loop
from .engine import Engine
from .named import NamedClaims
from .operations import ClaimOp, Op, Reply
from .store import BatchStore, ShardedStore

MakeEngine = Callable[[BatchStore], Engine]

_LOOK_EVERY: Final = 1.0
"""Seconds between two searches for parts that are gone: their engines would probe for ever."""
MAX_HOPS: Final = 12
"""The most times that an operation is sent on. A slot that moves costs up to four; more means a faulty Cluster."""


def on_the_move(name: str) -> UnavailableError:
    """Return the error for an operation that was sent on too often."""
    return UnavailableError(f"{name}: the key's slot is being moved")


class ShardedEngine:
    """The engine of a `ShardedStore`: each operation goes to the `Engine` of its key's part.

    A part that hangs delays only the operations on its own keys, and its breaker opens alone. An operation that a
    part sends on to another leaves its batch and goes through the other part's engine.
    """

    def __init__(self, store: ShardedStore, make_engine: MakeEngine) -> None:
        self._store = store
        self._part_of = store.shard
        self._make_engine = make_engine
        self._loop = asyncio.get_running_loop()
        self.engines: dict[BatchStore, Engine] = {}
        """The engine of each part of the store that was asked."""
        self.named = NamedClaims()
        """The claims of caller-chosen owners, for all parts."""
        # Mutable: the draining of the engines whose parts are gone.
        self._leaving: set[asyncio.Task[None]] = set()
        self._look: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that this engine belongs to."""
        return self._loop

    @property
    def pending(self) -> int:
        """The number of operations that wait or are under way."""
        return sum(engine.pending for engine in self.engines.values())

    @property
    def in_flight(self) -> int:
        """The number of batches under way."""
        return sum(engine.in_flight for engine in self.engines.values())

    @property
    def breaker(self) -> BreakerState:
        """OPEN if no part answers, PARTLY_OPEN if only some parts answer."""
        shards = self._store.shards()
        return together(
            self.engines[shard].breaker if shard in self.engines else BreakerState.CLOSED for shard in shards
        )

    def asks(self, wire: bytes) -> bool:
        """True if an operation on this store key would be sent; False while its part does not answer."""
        try:
            engine = self.engines.get(self._part_of(wire))
        except UnavailableError:
            return False  # no part is known to hold it
        return engine is None or engine.asks(wire)

    def submit(self, op: Op, future: Any = None) -> asyncio.Future[Reply]:
        """Accept an operation; see `Engine.submit`. UnavailableError also if no part is known to hold the key."""
        op.hops = 0
        return self._engine(op.wire).submit(op, future)

    def claim(self, op: ClaimOp, future: Any = None) -> asyncio.Future[Reply]:
        """Accept a claim; see `Engine.claim`."""
        op.hops = 0
        engine = self.engines.get(self._part_of(op.wire))  # written out, see `Engine.claim`
        return (self._engine(op.wire) if engine is None else engine).claim(op, future)

    def free_orphan(self, op: ClaimOp) -> None:
        """Release a claim (see `Engine.free_orphan`), unless it was never accepted or its part is gone."""
        if hasattr(op, "future"):
            # Never raises, because the caller's cancellation must go on. Without a release the lease ends by itself.
            with contextlib.suppress(DedupError):
                self._engine(op.wire).free_orphan(op)

    async def drain(self) -> None:
        """Drain the engines of all parts at once; see `Engine.drain`."""
        self._closed = True
        if self._look is not None:
            self._look.cancel()
        drained = -1
        # A part may send operations on to another, whose engine was drained already, or is made only then.
        while self.pending or drained < len(self.engines):
            drained = len(self.engines)
            await asyncio.gather(*[engine.drain() for engine in self.engines.values()], *self._leaving)

    def _engine(self, wire: bytes) -> Engine:
        shard = self._part_of(wire)
        engine = self.engines.get(shard)
        if engine is not None:
            return engine
        if self._closed:
            raise closed()
        return self._begin(shard)

    def _begin(self, shard: BatchStore) -> Engine:
        if asyncio.get_running_loop() is not self._loop:
            raise wrong_loop()  # an engine belongs to the loop that makes it
        if not self._closed:  # else `drain` drains them all, and each only once at a time
            self._let_go()
            if self._look is None:
                self._look = self._loop.call_later(_LOOK_EVERY, self._look_around)
        engine = self.engines[shard] = self._make_engine(shard)
        engine.hand_over, engine.named = self._hand_over, self.named
        return engine

    def _hand_over(self, former: Engine, op: Op, part: BatchStore) -> None:
        """Let an operation go on at another part. If it cannot, its caller gets the error."""
        op.hops = getattr(op, "hops", 0) + 1  # a release of the engine's own has none
        try:
            if op.hops > MAX_HOPS:
                raise on_the_move(getattr(part, "name", "the store"))
            engine = self.engines.get(part) or self._begin(part)
        except Exception as error:  # noqa: BLE001 -- the caller gets it: the former engine has others to answer
            former.refuse(op, error)
        else:
            engine.take_over(op)

    def _look_around(self) -> None:
        self._let_go()
        self._look = self._loop.call_later(_LOOK_EVERY, self._look_around)

    def _let_go(self) -> None:
        """Close the engines whose parts are gone. Their operations are answered, and their breakers close."""
        present = set(self._store.shards())
        for part in [part for part, engine in self.engines.items() if is_gone(part, engine, present)]:
            task = self._loop.create_task(self.engines.pop(part).leave(), name="fastdedup-drain")
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)


def is_gone(part: BatchStore, engine: Engine, present: set[BatchStore]) -> bool:
    """True for an engine that must be closed: its part is gone, or it is a part's side way and has no work."""
    if part in present:
        return False
    if getattr(part, "side_way_of", None) in present:
        return not engine.pending and engine.breaker is BreakerState.CLOSED
    return True


def together(states: Iterable[BreakerState]) -> BreakerState:
    """Return the state of a whole store from the states of its parts; OPEN if there are no parts."""
    found = set(states) or {BreakerState.OPEN}
    return found.pop() if len(found) == 1 else BreakerState.PARTLY_OPEN
