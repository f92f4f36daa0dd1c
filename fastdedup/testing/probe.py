"""The open work of a gate, and the state of its store: for tests that wait for it, or assert it."""

from __future__ import annotations

from typing import NamedTuple

from ..checks import named
from ..errors import ConfigError
from ..gateway import Dedup
from ..kernel.keyspace import names_of
from ..model import BreakerState
from ..sync.gateway import Dedup as SyncDedup


class Probe(NamedTuple):
    """A gate at one moment, with all its scopes, which share one connection.

    Attributes:
        pending: operations that wait to be sent, or that the store has not answered yet.
        orphans: keys of claims and ids that got no answer, or that no caller knows of: the gate frees them as soon as
            the store answers.
        journal: records that `LocalLRU` has made in an outage and that the store has not got yet.
        breaker: OPEN while the store does not answer and gets no operations.
        waiting: callers that wait for another owner to settle.
        renewals: leases that are kept alive and whose first third is not over.
        unfinished: tasks that go on although their callers were cancelled; closing waits for them.
    """

    pending: int
    orphans: tuple[str, ...]
    journal: int
    breaker: BreakerState
    waiting: int
    renewals: int
    unfinished: int

    @property
    def is_idle(self) -> bool:
        """True if no work is left: no operation, orphan, record for the store or unfinished task."""
        return not (self.pending or self.orphans or self.journal or self.unfinished)


def probe(dedup: Dedup | SyncDedup) -> Probe:
    """Return the open work of a gate. Take another probe to see changes.

        await wait_until(lambda: probe(dedup).is_idle)

    A gate on a `FakeStore` has a connection for each event loop: this shows the one of the running loop. A gate of
    `fastdedup.sync` is read in its own thread, if it is open.

    Raises:
        ConfigError: `dedup` is not a gate.
    """
    if isinstance(dedup, Dedup):
        return _probed(dedup)
    if not isinstance(dedup, SyncDedup):
        raise ConfigError(f"probe() takes a Dedup or a fastdedup.sync.Dedup, got {named(dedup)}")
    if not dedup.per_process.is_open:
        return _probed(dedup.bound.latest)
    background, gate = dedup.bound.get()

    async def looked() -> Probe:
        return _probed(gate)

    return background.run(looked, dedup.per_process.seconds)


def _probed(dedup: Dedup) -> Probe:
    connection = dedup.gate.connection
    return Probe(
        pending=dedup.pending,
        orphans=tuple(
            names_of(store_key)[1]
            for (store_key, _), orphan in connection.orphans.listed()
            if orphan.is_pending
        ),
        journal=sum(connection.journals.lines().values()),
        breaker=connection.breaker,
        waiting=sum(connection.wakeups.waiting.values()),
        renewals=len(connection.renewals.waiting()),
        unfinished=connection.unfinished,
    )
