"""`FakeStore`: the store in memory, with a clock that a test moves, outages, and a record of claims."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial

from ..checks import named
from ..errors import ConfigError, UnavailableError
from ..kernel.operations import Op, Reply, mark_resent
from ..kernel.verbs import Verb
from ..stores.base import Page, Query
from ..stores.memory import MemoryStore
from .claims import ClaimLog
from .clock import Clock
from .outage import FrozenBatch, Outage, in_loop, is_another_thing_later, refused, reply_lost

OnFreed = Callable[[bytes | None], None]


class FakeStore:
    """A store for tests: the store of `memory://`, which several event loops and threads may share.

    Its records last as long as the object: if a gate is closed and opened again, nothing is forgotten, like in Redis.

    Args:
        clock: the clock by which leases end; a new one by default.

    Raises:
        ConfigError: `clock` is not a `Clock`.

    Attributes:
        clock: moves time: `store.clock.advance(31)`.
        outage: makes the store unavailable: `with store.outage("refused"):`, also "frozen" and "lost_reply".
        seen: the record of claims and settlements; `assert_claimed_once` reads it.

    The methods are those of a `Store`, for the gate.
    """

    name = "fake"

    def __init__(self, clock: Clock | None = None) -> None:
        if not isinstance(clock, Clock | None):
            raise ConfigError(f"clock must be a fastdedup.testing.Clock, got {named(clock)}: use Clock(now)")
        self.clock = Clock() if clock is None else clock
        """Moves time: `store.clock.advance(31)`."""
        self.outage = Outage()
        """Makes the store unavailable: `with store.outage("refused"):`."""
        self._memory = MemoryStore(clock=self.clock)
        # One operation at a time, because the memory store is made for one thread.
        self._lock = threading.RLock()
        # Mutable: the batches of a frozen store, which take effect when it goes on, even if no caller waits; the
        # listeners for freed keys, with their loops; the record of claims.
        self._frozen: list[FrozenBatch] = []
        self._listeners: list[tuple[asyncio.AbstractEventLoop, OnFreed]] = []
        self.seen = ClaimLog(self.clock)
        """The record of claims and settlements; `assert_claimed_once` reads it."""
        self.clock.after_move.append(partial(self._tell, None))
        self.outage.on_stop.append(self._thaw)

    def __repr__(self) -> str:
        return f"<FakeStore records={len(self._memory)} {self.outage!r}>"

    def __len__(self) -> int:
        """The number of unexpired records."""
        with self._lock:
            self._memory.now()
            return len(self._memory)

    @property
    def time_us(self) -> int:
        """The clock's time, in microseconds since 1970."""
        return self._memory.time_us

    # The methods of a store

    async def open(self) -> None:
        """Do nothing, because it needs no connection."""

    async def aclose(self) -> None:
        """Do nothing, because it keeps its records."""

    async def listen(self, on_freed: OnFreed) -> None:
        """Call `on_freed` from now on for each watched key that is freed or settled, in the running loop."""
        if not self._listeners:
            await self._memory.listen(self._tell)
        listener = (asyncio.get_running_loop(), on_freed)
        if listener not in self._listeners:
            self._listeners = [each for each in self._listeners if not each[0].is_closed()]
            self._listeners.append(listener)

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        """Execute operations at once, or apply the outage to them."""
        if self.outage.kind == "frozen":
            batch = FrozenBatch(verb, ops, asyncio.get_running_loop().create_future())
            if not is_another_thing_later(verb, ops):
                self._frozen.append(batch)
            mark_resent(ops)
            return await batch.waits
        if self.outage.hits("refused"):
            raise refused()
        replies = self.apply(verb, ops)
        if self.outage.hits("lost_reply"):
            mark_resent(ops)
            raise reply_lost()
        return replies

    async def page(self, query: Query, cursor: str, count: int) -> Page:
        """List some of the records; see `AdminStore`. An outage of any kind refuses it."""
        if self.outage.kind == "frozen" or self.outage.hits("refused"):
            raise refused()
        with self._lock:
            return await self._memory.page(query, cursor, count)  # which does not wait

    async def eviction_policy(self) -> None:
        """Return None: it has no such setting, and forgets nothing."""

    def apply(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        """Execute operations, also in an outage. In any thread."""
        replies: list[Reply] = []
        with self._lock:
            for op in ops:
                try:
                    reply = self._memory.apply(op)
                except UnavailableError as error:
                    reply = error
                self.seen.note(op, reply)
                replies.append(reply)
        return replies

    def policy_answered(self, op: Op, reply: Reply) -> None:
        """Note the answer of a gate's policy in an outage."""
        with self._lock:
            self.seen.note(op, reply)

    def extend_lease(self, op: Op) -> Reply:
        """Renew a lease in place of its owner; this does not count as a call of the store."""
        with self._lock:
            return self._memory.apply(op)

    def _tell(self, wire: bytes | None) -> None:
        """Report a freed key; None: each waiter must look again."""
        for loop, on_freed in self._listeners:
            in_loop(loop, partial(on_freed, wire))

    def _thaw(self) -> None:
        frozen, self._frozen = self._frozen, []
        for batch in frozen:
            batch.answer(self.apply(batch.verb, batch.ops))
