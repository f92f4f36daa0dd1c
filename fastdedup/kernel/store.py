"""The store protocol of the engine: a store executes batches, and may have four more abilities.

`stores/base.py` has the guarantees of a whole store, and the abilities that the gate above the engine uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from ..model import Batching
from .operations import Op, Reply
from .verbs import Verb


class BatchStore(Protocol):
    """A store, or a part of one, in the engine's view."""

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        """Execute operations of one verb; the replies have the order of the operations.

        It is cancelled at the engine's deadline; operations that were sent before it may have taken effect. If
        operations without a reply were sent, call `mark_resent` with them.
        """
        ...


Done = Callable[[Sequence[Reply] | None], None]


@runtime_checkable
class DirectStore(Protocol):
    """An optional ability of a store: to execute a batch without a task, which saves a third of a single call.

    The engine uses it if the store has it, and `execute` wherever `begin` cannot answer.
    """

    def begin(self, verb: Verb, ops: Sequence[Op], done: Done) -> bool:
        """Send a batch, if that is possible at once. False: nothing was sent, the engine uses `execute`.

        `done` is called once, later, never from within `begin`: with the replies, or with None if
        the engine must use `execute` for the same operations (they may have taken effect).
        """
        ...

    def abandon(self) -> None:
        """Call `done(None)` for every batch under way, because one batch is past its deadline."""
        ...


@runtime_checkable
class ProbedStore(Protocol):
    """An optional ability of a store: to find out at a low cost whether it would take a claim now.

    Without it the breaker probes by reading a key that does not exist.
    """

    async def probe(self, wire: bytes) -> None:
        """Return normally if the store would take a claim now. `wire`: no user's key; a record of it ends at once.

        Raises:
            UnavailableError: the store would not take the claim.
        """
        ...


@runtime_checkable
class ClockedStore(Protocol):
    """An optional ability of a store: to know the time of the clock that ends leases."""

    @property
    def time_us(self) -> int:
        """Microseconds since 1970: a server's last time plus the time since then; 0 if no server gave one."""
        ...


@runtime_checkable
class TimedStore(ClockedStore, Protocol):
    """An optional ability of a store: to know the latest time that any of its servers has reported."""

    @property
    def latest_us(self) -> int:
        """Microseconds since 1970 by a server's clock, or the latest fresh fence if that is later. Never falls."""
        ...


@runtime_checkable
class ShardedStore(Protocol):
    """An optional ability of a store: to consist of parts that queue and fail separately, such as a Cluster's nodes.

    Each part executes the operations on the keys that it holds. `ShardedEngine` gives each part its own engine and
    breaker; `open`, `aclose` and `listen` concern the whole store. A part has a `name` of its own: events show it,
    and after an outage a record that must be written into the store waits only for the part of that name.

    A part answers `Redirect` for an operation that belongs to another part. That may be a side way, which is not one
    of `shards()`: its attribute `side_way_of` names the part that it belongs to.
    """

    @property
    def batching(self) -> Batching:
        """The way in which batches go to the parts now: some Clusters need a batch for each slot."""
        ...

    def shard(self, wire: bytes) -> BatchStore:
        """Return the part that holds a key now. Called for each operation, so it must not do I/O.

        Raises:
            UnavailableError: no part is known to hold the key.
        """
        ...

    def shards(self) -> Sequence[BatchStore]:
        """Return the parts that exist now. The engine of a part that is gone is closed."""
        ...
