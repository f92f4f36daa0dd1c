"""What lasts of a gate while event loops come and go, and its way to the connection of the loop that runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from ..checks import Seconds, check_count, check_seconds, shown
from ..decorated import DecoratedFunctions
from ..errors import ConfigError, UsageError
from ..events import OnEvent
from ..kernel.engine import Engine, OnBatch
from ..kernel.shards import ShardedEngine
from ..model import BreakerState
from ..stores.source import StoreSource
from ..tasks import running_loop
from .connection import Connection
from .counters import MAX_NAMESPACES, GateCounters
from .listeners import Listeners
from .recent import RecentSuccesses
from .settings import ConnectionSettings
from .wakeups import Wakeups


class Factory(Protocol):
    """Makes the connections of a gate, and knows which one serves an event loop."""

    @property
    def is_open(self) -> bool:
        """True where the loop that runs has an open connection; outside of any loop, where some loop has one."""

    @property
    def is_opened(self) -> bool:
        """True while the application has opened it, and may not let it be counted any more."""

    def here(self) -> Connection:
        """Return the connection of the loop that runs. It need not be open."""

    def all(self) -> Sequence[Connection]:
        """Return all connections that there are; in any thread."""

    async def open(self) -> None:
        """Open a connection in the loop that runs; see `Connections.open`."""

    async def aclose(self) -> None:
        """Close the connection of the loop that runs; see `Connection.aclose`."""


class Connections:
    """The connections of a `Dedup` with all its scopes, one after another, and what they have in common.

    Args:
        stores: the stores of the connections.
        settings: what all connections have in common.
        the others are those of `Dedup`.

    Raises:
        ConfigError: a setting is not valid; the message names it.
    """

    def __init__(
        self,
        stores: StoreSource,
        settings: ConnectionSettings,
        *,
        replicas: int = 0,
        on_shortfall: Literal["report", "raise"] = "report",
        known_duplicates: Seconds = 0.0,
        on_event: OnEvent | None = None,
    ) -> None:
        self.settings = settings
        self.replicas = check_count(replicas, "replicas", least=0)
        if on_shortfall not in ("report", "raise"):
            raise ConfigError(f"on_shortfall must be 'report' or 'raise', got {shown(on_shortfall)}")
        self.raises_shortfall = on_shortfall == "raise"
        off = known_duplicates is False
        self.recent = RecentSuccesses(
            0.0 if off else check_seconds(known_duplicates, "known_duplicates", least=0.0)
        )
        self.listeners = Listeners(settings.name, on_event)
        self.watchers = self.listeners.watchers
        """Who counts and who traces."""
        self.decorated = DecoratedFunctions()
        # Mutable: the first namespaces with a ledger.
        self._with_ledgers: set[str] = set()
        self.engine: Engine | ShardedEngine | None = None
        """The engine of the one connection that is open. None where none is, and where each loop has its own."""
        self.factory: Factory
        self.here: Callable[[], Connection]
        """Return the connection of the loop that runs. It need not be open."""
        self.use(OneAtATime(self, stores))

    def use(self, factory: Factory) -> None:
        """Let a factory make the connections from now on, as a test does. No connection may be open."""
        self.factory = factory
        self.here = factory.here

    # Life

    @property
    def is_open(self) -> bool:
        """True between `open` and `aclose`, while the event loop that opened it exists."""
        return self.factory.is_open

    async def open(self) -> None:
        """Open a connection in the running event loop; again after closing, or where the former loop has ended.

        Raises:
            UsageError: it is open already, in a loop that still runs, or it is being closed.
            ConfigError: the store can never be used as it is set up.
        """
        await self.factory.open()

    async def aclose(self) -> None:
        """Close the connection of the running event loop; see `Connection.aclose`."""
        await self.factory.aclose()

    def running_engine(self) -> Engine | ShardedEngine:
        """Return the engine of the running event loop; UsageError where it is not open here."""
        return self.here().running_engine()

    def keep_records_of(self, max_result: int) -> None:
        """Let the stores return records with results of this many bytes; see `ConnectionSettings`."""
        self.settings.max_result = max(self.settings.max_result, max_result)
        for connection in self.factory.all():
            connection.keep_records()

    # Figures

    @property
    def breaker(self) -> BreakerState:
        """Whether the store is asked, in the loop that runs; outside of any loop, where it is not in some loop."""
        found = self.factory.all() if running_loop() is None else (self.here(),)
        return next(
            (each.breaker for each in found if each.breaker is not BreakerState.CLOSED), BreakerState.CLOSED
        )

    def journals(self) -> dict[str, int]:
        """Return how many records each journal has for the store, by the namespace of its policy's gate."""
        # Event loops share a policy, so its records are not added up.
        return {name: lines for each in self.factory.all() for name, lines in each.journals.lines().items()}

    def undo_counts(self) -> tuple[int, int]:
        """Return how many claims and ids that were given up were taken back, and how many are still to be."""
        lists = [connection.undo for connection in self.factory.all()]
        return sum(undo.undone for undo in lists), sum(len(undo) for undo in lists)

    def count(self) -> GateCounters:
        """Return the counters of this gate, which count from now on.

        Raises:
            UsageError: the gate is open: its engine would not know.
        """
        if self.watchers.counters is not None:
            return self.watchers.counters
        if self.factory.is_opened:
            raise UsageError("this Dedup is open already: let its metrics be counted before you open it")
        return self.count_anew()

    def count_anew(self) -> GateCounters:
        """Return new counters, which count from now on. Each time goes where it went before."""
        former, counters = self.watchers.counters, GateCounters()
        if former is not None:
            counters.durations = former.durations
        for namespace in self.recent.namespaces():
            counters.expect(namespace)
        for namespace in self._with_ledgers:
            counters.expect(namespace, "first")
        self.watchers.counters = counters
        return counters

    def expect(self, namespace: str) -> None:
        """Take note that a namespace may be used, for its figures; `recent` knows it as long as it lives."""
        if self.watchers.counters is not None:
            self.watchers.counters.expect(namespace)

    def expect_ids(self, namespace: str) -> None:
        """Take note that a namespace has a ledger, for the figures of its ids."""
        if len(self._with_ledgers) < MAX_NAMESPACES:
            self._with_ledgers.add(namespace)
        if self.watchers.counters is not None:
            self.watchers.counters.expect(namespace, "first")

    def hear_batches(self, callback: OnBatch) -> None:
        """Call a user's function with the size of each batch. An error of that is logged, and stops no batch."""
        self.listeners.on_batch[:] = [callback]


class OneAtATime:
    """Makes the connections of a gate in life: one is open at a time, and the next event loop gets another.

    Args:
        gate: what lasts of the gate.
        stores: the stores of the connections.
    """

    def __init__(self, gate: Connections, stores: StoreSource) -> None:
        self._gate = gate
        self._stores = stores
        # The same for all, as a store that they share tells the first one of freed keys.
        self._wakeups = Wakeups()
        self._present = self._made()  # mutable: the one that is open, or was last

    def _made(self) -> Connection:
        return Connection(
            self._gate.settings,
            self._gate.listeners,
            self._stores,
            wakeups=self._wakeups,
            on_engine=self._note_engine,
        )

    def _note_engine(self, engine: Engine | ShardedEngine | None) -> None:
        self._gate.engine = engine
        if engine is None:
            self._gate.recent.clear()

    @property
    def is_open(self) -> bool:
        """True between `open` and `aclose`, while the event loop that opened it exists."""
        return self._present.is_open

    @property
    def is_opened(self) -> bool:
        """True from `open` to `aclose`, or until its loop ends."""
        return self._present.engine is not None

    def here(self) -> Connection:
        """Return the connection that is open, or was last; in whichever loop."""
        return self._present

    def all(self) -> Sequence[Connection]:
        """Return the same one."""
        return (self._present,)

    async def open(self) -> None:
        """Open a connection in the running event loop."""
        former = self._present
        if former.is_new:
            await former.open()
            return
        if former.is_open:
            raise already_open()
        if former.is_closing and not former.is_loop_gone:
            raise UsageError("this Dedup is being closed; await aclose() before you open it again")
        self._wakeups.close()
        self._gate.recent.clear()
        self._present = self._made()
        try:
            await self._present.open(former)
        finally:
            if not self._present.is_open:
                self._present = former  # what that has left is for the next one

    async def aclose(self) -> None:
        """Close the connection, whichever loop it was open in."""
        await self._present.aclose()
        self._gate.recent.clear()


def already_open() -> UsageError:
    """The error for a second opening."""
    return UsageError("this Dedup is open already; open it once, at start-up, and share it")
