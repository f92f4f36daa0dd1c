"""The connections of a gate: one is open at a time, and the next event loop gets another."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..errors import UsageError
from ..fallback.base import FallbackPolicy, OneLoopPolicy
from ..kernel.engine import Engine
from ..kernel.shards import ShardedEngine
from ..model import BreakerState
from ..stores.source import StoreSource
from ..tasks import running_loop
from .common import Common
from .connection import Connection
from .counters import GateCounters
from .wakeups import Wakeups


class Connections:
    """The connections of a `Dedup` with all its scopes, one after another.

    Args:
        common: the part that they share.
        stores: their stores.
    """

    def __init__(self, common: Common, stores: StoreSource) -> None:
        self.common = common
        self.stores = stores
        # The same for all, because a store that they share reports freed keys to the first one.
        self._wakeups = Wakeups(common)
        # Mutable: the connection that is open, or was open last.
        self._present = self.make()
        self.engine: Engine | ShardedEngine | None = None
        """The engine of the one connection that is open; None if none is. Each claim reads it."""
        self.stand_in: Connections | None = None
        """In a test: makes the connections in place of this object. Change it only while nothing is open."""

    def make(self) -> Connection:
        """Return a new connection."""
        return Connection(self.common, self.stores, wakeups=self._wakeups, on_engine=self._note_engine)

    def _note_engine(self, engine: Engine | ShardedEngine | None) -> None:
        self.engine = engine
        if engine is None:
            self.common.recent.clear()

    def here(self) -> Connection:
        """Return the connection of the running event loop; it need not be open."""
        return self._present if self.stand_in is None else self.stand_in.here()

    def all(self) -> Sequence[Connection]:
        """Return the existing connections; in any thread."""
        return (self._present,) if self.stand_in is None else self.stand_in.all()

    # Life

    @property
    def is_open(self) -> bool:
        """True between `open` and `aclose`, while the event loop that opened it exists."""
        return self._present.is_open if self.stand_in is None else self.stand_in.is_open

    @property
    def may_be_counted(self) -> bool:
        """False while the application has it open, because a running engine would not know of the counters."""
        return self.engine is None if self.stand_in is None else self.stand_in.may_be_counted

    async def open(self) -> None:
        """Open a connection in the running event loop; again after closing, or if the former loop has ended.

        Raises:
            UsageError: it is already open in a loop that still runs, or it is being closed; or a gate in another loop
                uses its policy.
            ConfigError: the store cannot be used with its present set-up.
        """
        if self.stand_in is not None:
            await self.stand_in.open()
            return
        former = self._present
        if former.is_new or former.is_open:  # the latter raises
            self._check_loop_of_policies(former)
            await former.open()
            return
        if former.is_closing and not former.is_loop_gone:
            raise UsageError("this Dedup is being closed; await aclose() before you open it again")
        self._wakeups.close()
        self.common.recent.clear()
        self._present = self.make()
        try:
            self._check_loop_of_policies(self._present)
            await self._present.open(former)
        finally:
            if not self._present.is_open:
                self._present = former  # its unfinished work is for the next one

    def use_policy(self, policy: FallbackPolicy) -> None:
        """Note that the gate or a scope of it has this policy.

        Raises:
            UsageError: the gate is open, and a gate in another event loop has the same policy open.
        """
        if not isinstance(policy, OneLoopPolicy) or policy in self.common.one_loop_policies:
            return
        if self.stand_in is None and self._present.is_open:
            note_loop_of(policy, self._present, self._present.loop)
        self.common.one_loop_policies.add(policy)

    def _check_loop_of_policies(self, connection: Connection) -> None:
        """Raise UsageError if a gate in another event loop has a policy of this gate or of a scope of it open."""
        for policy in tuple(self.common.one_loop_policies):
            note_loop_of(policy, connection, running_loop())

    async def aclose(self) -> None:
        """Close the connection of the running event loop; see `Connection.aclose`."""
        if self.stand_in is not None:
            await self.stand_in.aclose()
            return
        await self._present.aclose()
        self.common.recent.clear()

    def keep_records_of(self, max_result: int) -> None:
        """Let the stores return records with results of this many bytes."""
        self.common.max_result = max(self.common.max_result, max_result)
        for connection in self.all():
            connection.keep_records()

    # Figures

    @property
    def breaker(self) -> BreakerState:
        """The breaker's state in the running loop; outside of any loop, the state over all loops."""
        states = [each.breaker for each in (self.all() if running_loop() is None else (self.here(),))]
        return next((state for state in states if state is not BreakerState.CLOSED), BreakerState.CLOSED)

    def journals(self) -> dict[str, int]:
        """Return how many records each journal has for the store, by the namespace of its policy's gate."""
        # Event loops share a policy, so its records are not added up.
        return {name: lines for each in self.all() for name, lines in each.journals.lines().items()}

    def orphan_counts(self) -> tuple[int, int]:
        """Return how many orphans (claims and ids) were freed, and how many are not freed yet."""
        all_orphans = [connection.orphans for connection in self.all()]
        return sum(orphans.freed for orphans in all_orphans), sum(len(orphans) for orphans in all_orphans)

    def count(self) -> GateCounters:
        """Return the counters of this gate, which count from now on.

        Raises:
            UsageError: the gate is open, and its engine would not know of the counters.
        """
        counters = self.common.observers.counters
        if counters is None and not self.may_be_counted:
            raise UsageError("this Dedup is open already: call watch() or instrument() before you open it")
        return self.common.count_anew() if counters is None else counters


def note_loop_of(
    policy: OneLoopPolicy, connection: Connection, loop: asyncio.AbstractEventLoop | None
) -> None:
    """Note that a connection in `loop` uses this policy; UsageError: one that is open in another loop does."""
    if any(each.is_open and each is not connection and each.loop is not loop for each in policy.connections):
        raise UsageError(
            f"{policy!r} is in use by a gate that is open in another event loop: "
            "give the gate of each event loop a policy of its own"
        )
    policy.connections.add(connection)
