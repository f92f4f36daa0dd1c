"""The store protocol: what a backend guarantees. What it is asked and what it answers is in `ops.py`.

A store executes *batches of independent operations of one verb*. Nothing here waits, retries,
decodes results or knows policies: that is the gateway's work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, runtime_checkable

from ..protocol.operations import Op, Reply, Verb


class Store(Protocol):
    """A place that remembers claims.

    Guarantees, each a test of the contract suite that every store runs:

    1.  Of any number of concurrent claims for a free key, exactly one is acquired.
    2.  The same owner claiming again gets its own claim back: same fence, same attempt.
    3.  Another owner finds IN_PROGRESS with the time that the lease has left.
    4.  When the lease has ended the next claimant acquires the key: attempt + 1, a higher fence.
    5.  Settling, releasing and renewing act for the present owner alone; a stale one changes nothing.
    6.  Settling, releasing and issuing again, after a lost reply, is answered as the first time.
    7.  A settled record answers every claimant with the first payload until it expires.
    8.  A released key is free: attempt + 1, a higher fence, any fingerprint.
    9.  Two different fingerprints on one key are a MISMATCH in every state.
    10. A token is acquired once, only if issued, only by its subject.
    11. A transition is one atomic step and moves only along the definition.
    12. Every record expires by itself.
    13. The operations of a batch are independent: one bad key fails alone.
    14. Whoever frees or settles a watched key tells the listener.
    15. A record made elsewhere is adopted, unless one that outranks it stands there: then both are named.

    A store raises UnavailableError, and nothing else, where it cannot answer.
    """

    async def open(self) -> None:
        """Check that the settings can work. Not an error: a backend that is down just now.

        Raises:
            ConfigError: the backend is there and cannot be used: too old, wrong password.
        """
        ...

    async def aclose(self) -> None:
        """Let go of everything. Also fine when never opened."""
        ...

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        """Execute operations of one verb; the replies stand in the order of the operations.

        Cancelled at the engine's deadline; what was sent by then may have taken effect.
        """
        ...

    async def listen(self, on_freed: Callable[[bytes | None], None]) -> None:
        """From the return on, call `on_freed(wire)` for each watched key that is freed or settled.

        `on_freed(None)` says that news may have been missed: every waiter must look again.
        """
        ...


Done = Callable[[Sequence[Reply] | None], None]


@runtime_checkable
class DirectStore(Protocol):
    """An optional ability of a store: to execute a batch without a task, which saves a third of a lone call.

    The engine uses it where it is there, and `execute` for all that does not go smoothly.
    """

    def begin(self, verb: Verb, ops: Sequence[Op], done: Done) -> bool:
        """Send a batch, if that can be done at once; False: nothing was sent, use `execute`.

        `done` is called once, later, never from within `begin`: with the replies, or with None where
        the engine shall use `execute` for the same operations (they may have taken effect).
        """
        ...

    def abandon(self) -> None:
        """Call `done(None)` for every batch under way: one of them is past its deadline."""
        ...


@runtime_checkable
class ProbedStore(Protocol):
    """An optional ability of a store: to say cheaply whether it would take a write now.

    Without it the breaker probes by reading a key that does not exist.
    """

    async def probe(self, wire: bytes) -> None:
        """Return where a write of `wire` would be taken; nothing is written.

        Raises:
            UnavailableError: it would not.
        """
        ...


@runtime_checkable
class TimedStore(Protocol):
    """An optional ability of a store: to tell the latest time that one of its servers has told it."""

    @property
    def latest_us(self) -> int:
        """Microseconds since 1970 by a server's clock, or a fresh fence where that is later; it never falls."""
        ...


RECORD_HEAD = 128
"""Bytes of a record without its result, at most."""


@runtime_checkable
class BoundedStore(Protocol):
    """An optional ability of a store: to leave a value alone that is larger than any record of its users.

    Such a key is answered by ForeignRecordError. `max_record`: bytes; raised by who stores larger results.
    """

    max_record: int


@runtime_checkable
class DegradingStore(Protocol):
    """An optional ability of a store: to have a policy of its own, such as the sidecar's.

    Its answers may be `degraded`, and the records that they are about are still its own to settle.
    """

    degrades: Literal[True]


@runtime_checkable
class ShardedStore(Protocol):
    """An optional ability of a store: to be made of parts that fail and queue apart, such as a Cluster's nodes.

    Each part is a `Store` that executes the operations on the keys that it holds. The router gives
    each an engine and a breaker of its own; `open`, `aclose` and `listen` are the whole store's.
    """

    def shard(self, wire: bytes) -> Store:
        """Return the part that holds a key now. Called for each operation: a lookup, no I/O.

        Raises:
            UnavailableError: no part is known to hold it.
        """
        ...

    def shards(self) -> Sequence[Store]:
        """Return the parts that exist now. A part that has gone answers no more; its engine is closed."""
        ...
