"""Lets one gate work in several event loops at a time: each loop that uses it gets a connection of its own.

Tests have many loops: each async test has one, Starlette's TestClient has one in another thread, or one for each
request, and `fastdedup.sync` has one for the process. A real connection is open in one of them at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Final

from ..core.common import Common
from ..core.connection import Connection
from ..core.connections import Connections
from ..core.renewal import Renewal
from ..core.settlement import Settlement
from ..fallback.base import FallbackPolicy, JournalledPolicy
from ..fallback.local import LocalLRU
from ..kernel.codes import Code
from ..kernel.operations import RenewOp, Reply
from ..kernel.verbs import Verb
from ..model import BreakerState
from ..stores.source import StoreSource
from ..tasks import running_loop
from .outage import in_loop, refused
from .store import FakeStore

_EXACT: Final = 1e-6
"""Two times with a smaller difference, in seconds, are equal: the clock has microseconds."""


class Renewed:
    """A claim whose lease is kept alive: its loop, its renewal, and its end by the store's clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, renewal: Renewal, now: float) -> None:
        self._loop = loop
        self._renewal = renewal
        life = self.life
        lease = 0.0 if life is None else life.verdict.left_ms / 1000
        # Mutable: the end of the lease that its owner knows; the time of its next renewal.
        self._ends = now + lease
        self._due = now + lease / 3

    @property
    def life(self) -> Settlement | None:
        """The claim's life; None if it is settled, lost or collected, or its loop has ended."""
        life = None if self._loop.is_closed() else self._renewal.held()
        return life if isinstance(life, Settlement) and life.settled is None and not life.lost else None

    def time_passes(self, store: FakeStore, seconds: float) -> None:
        """Renew the lease as often as a gate would do in this time.

        It is lost if the answer is that its owner no longer has the key; without an answer, when it ends.
        """
        life, then = self.life, store.clock.now + seconds
        if life is None or self._due - then >= _EXACT:
            return
        reply = _renew(life, seconds, store)
        if reply is Code.OK:
            lease = life.op.terms.lease_ms / 1000
            self._ends, self._due = then + lease, then + lease / 3
        elif reply is not None:
            if not life.is_over:
                self._lose(life, outage=False)
        elif self._ends - then < _EXACT:
            self._lose(life, outage=True)

    def _lose(self, life: Settlement, *, outage: bool) -> None:
        # At once, for a test that moves the clock in another thread and then looks.
        life.note_lost(outage=outage)
        in_loop(self._loop, partial(self._stop, life, outage))

    def _stop(self, life: Settlement, outage: bool) -> None:
        if life.settled is None:
            self._renewal.stop()
            life.lose(outage=outage)


def _renew(life: Settlement, seconds: float, store: FakeStore) -> Reply | None:
    """Renew a lease so that all of it is left once these seconds are over; return None if there is no answer.

    It asks like the gate: the policy in an outage, and for as long as the policy keeps the record.
    """
    (wire, owner), terms, more = life.held_key, life.op.terms, round(seconds * 1000)
    op = RenewOp(wire, owner, life.fence, terms.lease_ms + more, terms.keep_ms + more)
    policy = life.gate.settings.on_unavailable
    if store.outage.kind is None and not _is_local(life, policy):
        reply = store.extend_lease(op)
        # A policy's answer may be in its ledger's bucket now, and the gate would find it there.
        return Code.OK if life.verdict.degraded and terms.remembered else reply
    try:
        answer: Reply = policy.answer(op, refused())
    except Exception:  # noqa: BLE001 -- the user's policy may raise any error: that is no answer
        return None
    return answer


def _is_local(life: Settlement, policy: FallbackPolicy) -> bool:
    """True if only the policy knows the claim, with or without an outage; see `Gate.begin`."""
    return policy.holds(life.op.wire) or (life.verdict.degraded and not isinstance(policy, JournalledPolicy))


class EachLoop(Connections):
    """Makes the connections of a gate in a test: each event loop that uses it has its own one, all on one store.

    A connection opens by itself, in the loop that uses it. `open` and `aclose` are for the application, which may
    call them.

    Args:
        common: the part that they share with those of the application.
        store: the store.
    """

    def __init__(self, common: Common, store: FakeStore) -> None:
        super().__init__(common, StoreSource(lambda: store))
        common.recent.age = 0.0  # it is real time, which a test's clock does not move
        common.may_count_later = True
        self.store = store
        # Mutable: the connections; the loops in which the application opened it; the claims that are renewed.
        self._by_loop: dict[asyncio.AbstractEventLoop, Connection] = {}
        self._opened: set[asyncio.AbstractEventLoop] = set()
        self._renewed: dict[Renewal, Renewed] = {}
        store.clock.before_move.append(self._time_passes)
        store.outage.on_stop.append(self._store_is_back)

    # Life

    @property
    def is_open(self) -> bool:
        """True if it is open in the running loop; outside of any loop, if it is open in some loop."""
        loop = running_loop()
        found = self.all() if loop is None else (self._by_loop.get(loop),)
        return any(each is not None and each.is_open for each in found)

    @property
    def may_be_counted(self) -> bool:
        """False while the application itself has it open, in a loop that still exists."""
        return all(loop.is_closed() for loop in tuple(self._opened))

    def all(self) -> Sequence[Connection]:
        """Return the connection of each loop."""
        return tuple(self._by_loop.values())

    def here(self) -> Connection:
        """Return the open connection of the running loop."""
        loop = running_loop()
        if loop is None:
            return self._present
        connection = self._by_loop.get(loop)
        if connection is None:
            return self._opened_now(loop, self._of_an_ended_loop())
        if connection.engine is None and not connection.is_closing and not connection.has_loop_ended:
            return self._opened_now(loop, connection)  # the application has closed the last one
        return connection

    def _opened_now(self, loop: asyncio.AbstractEventLoop, former: Connection | None) -> Connection:
        connection = self._by_loop[loop] = self.make()
        _at_once(connection.open(former))  # on this store it never waits
        return connection

    async def open(self) -> None:
        """Open in the running loop. Raises UsageError if the application has opened it there already."""
        loop = asyncio.get_running_loop()
        if loop in self._opened and self.is_open:
            await self.here().open()  # raises the same error as outside of a test
        self._opened.add(loop)
        self.here()

    async def aclose(self) -> None:
        """Close in the running loop. It opens again by itself."""
        loop = asyncio.get_running_loop()
        self._opened.discard(loop)
        connection = self._by_loop.get(loop)
        if connection is not None:
            await connection.aclose()

    def end(self) -> None:
        """End the background work, because the test is over."""
        self.store.clock.before_move.remove(self._time_passes)
        self.store.outage.on_stop.remove(self._store_is_back)
        for loop, connection in tuple(self._by_loop.items()):
            for policy, _ in connection.journals.policies():
                if isinstance(policy, LocalLRU):  # a scope's policy: the next store must not get its journal
                    policy.begin_anew()
            in_loop(loop, connection.journals.cancel)

    def make(self) -> Connection:
        """Return a new connection."""
        connection = Connection(self.common, self.stores)
        connection.renewals.on_asked = self._renewal_begins
        return connection

    def _of_an_ended_loop(self) -> Connection | None:
        """Return the connection of a loop that has ended: it knows its unfinished work."""
        for loop in tuple(self._by_loop):
            if loop.is_closed():
                self._opened.discard(loop)
                return self._by_loop.pop(loop, None)
        return None

    # Changes by a test

    def _renewal_begins(self) -> None:
        # Look while it is in the queue: it leaves that when a third of the lease is over in real time.
        asyncio.get_running_loop().call_soon(self._look_for_renewals)

    def _look_for_renewals(self) -> None:
        """Note the leases that are renewed now: later only their tasks know of them."""
        for loop, connection in tuple(self._by_loop.items()):
            for renewal in connection.renewals.waiting():
                if isinstance(renewal, Renewal) and renewal not in self._renewed:
                    # Its lease began now, because the clock has not moved since the last look.
                    self._renewed[renewal] = Renewed(loop, renewal, self.store.clock.now)
        for renewal, renewed in tuple(self._renewed.items()):
            if renewed.life is None:
                self._renewed.pop(renewal, None)

    def _time_passes(self, seconds: float) -> None:
        self._look_for_renewals()
        for each in tuple(self._renewed.values()):
            each.time_passes(self.store, seconds)

    def _store_is_back(self) -> None:
        for loop, connection in tuple(self._by_loop.items()):
            _free_orphans(connection, self.store)
            in_loop(loop, partial(_tell_that_it_is_back, connection))


def _at_once(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration:
        return
    work.close()
    raise AssertionError("opening a connection on a store in memory waits for nothing")


def _free_orphans(connection: Connection, store: FakeStore) -> None:
    """Free the orphans of the outage. The gate does that soon, but a test's next claim must not come first."""
    for held_key, orphan in connection.orphans.listed():
        look = orphan.look(held_key[0])
        (found,) = store.apply(look.verb, [look])
        release = orphan.release(held_key, found)
        if release is not None:
            store.apply(Verb.RELEASE, [release])


def _tell_that_it_is_back(connection: Connection) -> None:
    """Let all waiters for the store go on, like a successful probe does."""
    engine: Any = connection.engine
    if engine is None:
        return
    if engine.breaker is BreakerState.OPEN:
        engine.store_is_back()
        return
    connection.retry_now(FakeStore.name)
