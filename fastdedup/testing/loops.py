"""Lets one gate work in several event loops at a time: each loop that asks gets a connection of its own.

Tests have many loops: each async test has one, Starlette's TestClient has one in another thread, or one for each
request, and `fastdedup.sync` has one for the process. A real connection is open in one of them at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final

from ..core.connection import Connection
from ..core.counters import MAX_NAMESPACES, GateCounters
from ..core.observers import Watchers
from ..core.orphans import is_held
from ..core.renewal import Renewal, RenewalQueue
from ..core.settlement import Settlement
from ..errors import UsageError
from ..events import Event
from ..fallback.base import FallbackPolicy, JournalledPolicy
from ..fallback.local import LocalLRU
from ..kernel.operations import Code, ReadOp, ReleaseOp, RenewOp, Reply, Stored, Verb
from ..model import BreakerState
from ..tasks import running_loop
from .outage import in_loop, refused
from .store import FakeStore

_EXACT: Final = 1e-6
"""Seconds by which two times are the same: the clock has microseconds."""


class Renewed:
    """A claim whose lease is kept alive: in which loop, by what, and until when by the store's clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, renewal: Renewal, now: float) -> None:
        self._loop = loop
        self._renewal = renewal
        life = self.life
        lease = 0.0 if life is None else life.verdict.left_ms / 1000
        # Mutable: when the lease ends, as its owner knows; when it is renewed next.
        self._ends = now + lease
        self._due = now + lease / 3

    @property
    def life(self) -> Settlement | None:
        """The claim's life; None if it is settled, lost or collected."""
        life = self._renewal.held()
        return life if isinstance(life, Settlement) and life.settled is None and not life.lost else None

    def time_passes(self, store: FakeStore, seconds: float) -> None:
        """Renew the lease as often as it would be in this time.

        It is lost if the answer is that its owner has the key no longer; without an answer, when it ends.
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
        # At once, for a test that moves the clock in another thread, and asks.
        life.note_lost(outage=outage)
        in_loop(self._loop, partial(self._stop, life, outage))

    def _stop(self, life: Settlement, outage: bool) -> None:
        if life.settled is None:
            self._renewal.stop()
            life.lose(outage=outage)


def _renew(life: Settlement, seconds: float, store: FakeStore) -> Reply | None:
    """Renew a lease so that all of it is left once these seconds are over; return None if there is no answer.

    It asks as the gate would: the policy in an outage, and as long as that keeps the record.
    """
    (wire, owner), terms, more = life.held_key, life.op.terms, round(seconds * 1000)
    op = RenewOp(wire, owner, life.fence, terms.lease_ms + more, terms.keep_ms + more)
    policy = life.gate.settings.on_unavailable
    if store.outage.kind is None and not _is_local(life, policy):
        reply = store.extend_lease(op)
        # What a policy has answered may be in its ledger's bucket by now, where the gate would find it.
        return Code.OK if life.verdict.degraded and terms.remembered else reply
    try:
        answer: Reply = policy.answer(op, refused())
    except Exception:  # noqa: BLE001 -- a policy of the user's may raise any: that is no answer
        return None
    return answer


def _is_local(life: Settlement, policy: FallbackPolicy) -> bool:
    """True if the policy alone knows the claim, outage or not; see `Gate.begin`."""
    return policy.holds(life.op.wire) or (life.verdict.degraded and not isinstance(policy, JournalledPolicy))


class EachLoop:
    """Stands in for a `Connection`, with one of its own for each event loop, all on one store.

    It opens by itself, in the loop that asks. `open` and `aclose` are for the application, which may call them.

    Args:
        make: returns a new connection on the store.
        store: the store.
        watchers: those of the gate. Its namespaces hold them, whichever connection they use.
        expected: namespaces whose figures stand at 0 before the first operation, each with the verbs if it is not
            for those of claims; see `GateCounters.expect`.
    """

    def __init__(
        self,
        make: Callable[[], Connection],
        store: FakeStore,
        watchers: Watchers,
        expected: Iterable[tuple[str, ...]],
    ) -> None:
        self._make = make
        self._store = store
        self.watchers = watchers
        # Mutable: bounded as the labels of the figures are.
        self.expected = set(expected)
        self._without_loop = self._made()
        # Mutable: the connections; the loops in which the application opened it; the claims that are renewed.
        self._by_loop: dict[asyncio.AbstractEventLoop, Connection] = {}
        self._opened: set[asyncio.AbstractEventLoop] = set()
        self._renewed: dict[Renewal, Renewed] = {}
        store.clock.before_move.append(self._time_passes)
        store.outage.on_stop.append(self._store_is_back)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._here(), name)

    # Life

    def is_on(self, store: FakeStore) -> bool:
        """True where this is its store."""
        return self._store is store

    @property
    def is_open(self) -> bool:
        """True where it is open in the loop that runs, or outside of any loop, in some loop."""
        loop = running_loop()
        found = list(self._by_loop.values()) if loop is None else [self._by_loop.get(loop)]
        return any(each is not None and each.is_open for each in found)

    @property
    def breaker(self) -> BreakerState:
        """The breaker of the loop that runs; outside of any loop, OPEN where it is in some loop."""
        if running_loop() is not None:
            return self._here().breaker
        states = [each.breaker for each in tuple(self._by_loop.values())]
        return BreakerState.OPEN if BreakerState.OPEN in states else BreakerState.CLOSED

    async def open(self) -> None:
        """Open in the running loop. Raises UsageError where the application has opened it there already."""
        loop = asyncio.get_running_loop()
        if loop in self._opened and self.is_open:
            await self._by_loop[loop].open()  # raises what it raises in life
        self._opened.add(loop)
        self._here()

    async def aclose(self) -> None:
        """Close in the running loop. It opens again by itself."""
        loop = asyncio.get_running_loop()
        self._opened.discard(loop)
        connection = self._by_loop.get(loop)
        if connection is not None:
            await connection.aclose()

    def end(self) -> None:
        """The test is over: do no more of what goes on in the background."""
        self._store.clock.before_move.remove(self._time_passes)
        self._store.outage.on_stop.remove(self._store_is_back)
        for loop, connection in tuple(self._by_loop.items()):
            for reconciler in connection.reconcilers():
                if isinstance(
                    reconciler.policy, LocalLRU
                ):  # of a scope: the next store is not to get its journal
                    reconciler.policy.__dict__ = reconciler.policy.anew().__dict__
            in_loop(loop, partial(_stop, connection))

    def _made(self) -> Connection:
        """Return a new connection, which tells the gate's counters what it does."""
        connection = self._make()
        connection.watchers = self.watchers
        connection.on_batch = self._on_batch
        connection.on_store_call = self._on_store_call
        connection.listeners.append(self._on_event)
        return connection

    def _here(self) -> Connection:
        """Return the connection of the loop that runs, open."""
        loop = running_loop()
        if loop is None:
            return self._without_loop
        connection = self._by_loop.get(loop)
        if connection is None:
            connection = self._by_loop[loop] = self._of_an_ended_loop() or self._made()
        engine = connection.engine
        if (engine is None or engine.loop is not loop) and not _ends(connection, loop):
            _at_once(connection.open())  # on this store nothing of it waits
        return connection

    def _of_an_ended_loop(self) -> Connection | None:
        """Return the connection of a loop that has ended: it knows what was left to do there."""
        for loop in tuple(self._by_loop):
            if loop.is_closed():
                self._opened.discard(loop)
                return self._by_loop.pop(loop, None)
        return None

    # The figures of the gate

    def count(self) -> GateCounters:
        """Return the counters of the gate, which count from now on what all its connections do.

        Raises:
            UsageError: the application has opened the gate already.
        """
        if self.watchers.counters is None and self._is_opened:
            raise UsageError("this Dedup is open already: let its metrics be counted before you open it")
        return self.watchers.counters or self.count_anew()

    def count_anew(self) -> GateCounters:
        """Return new counters of the gate, which count from now on. Each time goes where it went before."""
        former, counters = self.watchers.counters, GateCounters()
        if former is not None:
            counters.durations = former.durations
        for each in tuple(self.expected):
            counters.expect(*each)
        self.watchers.counters = counters
        return counters

    def expect(self, namespace: str) -> None:
        """Take note that a namespace may be used; see `Connection.expect`."""
        self._expect(namespace)

    def expect_ids(self, namespace: str) -> None:
        """Take note that a namespace has a ledger; see `Connection.expect_ids`."""
        self._expect(namespace, "first")

    def _expect(self, *names: str) -> None:
        if len(self.expected) < MAX_NAMESPACES:
            self.expected.add(names)
        if self.watchers.counters is not None:
            self.watchers.counters.expect(*names)

    @property
    def _is_opened(self) -> bool:
        """True where the application itself has opened it, in a loop that still exists, and has not closed it."""
        return any(not loop.is_closed() for loop in tuple(self._opened))

    def journals(self) -> dict[str, int]:
        """Return how many records each journal has for the store; see `Connection.journals`."""
        found: dict[str, int] = {}
        for connection in tuple(self._by_loop.values()):
            found |= connection.journals()  # loops share a policy, so its records are not added up
        return found

    def undo_counts(self) -> tuple[int, int]:
        """Return what was taken back, and what is still to be; see `Connection.undo_counts`."""
        counts = [connection.undo_counts() for connection in tuple(self._by_loop.values())]
        return sum(done for done, _ in counts), sum(left for _, left in counts)

    # Not methods of the counters: those may be asked for when the connections are open already.

    def _on_batch(self, size: int) -> None:
        if self.watchers.counters is not None:
            self.watchers.counters.on_batch(size)

    def _on_store_call(self, verb: str, took: float) -> None:
        if self.watchers.counters is not None:
            self.watchers.counters.on_store_call(verb, took)

    def _on_event(self, event: Event) -> None:
        if self.watchers.counters is not None:
            self.watchers.counters.on_event(event)

    # What a test does

    def renewals(self, lease: float) -> RenewalQueue:
        """Return the queue of renewals of that lease, in seconds; see `Connection.renewals`."""
        queue = self._here().renewals(lease)
        # Once it is in the queue, and before it leaves that, as a third of the lease is over in real time.
        asyncio.get_running_loop().call_soon(self._look_for_renewals)
        return queue

    def _look_for_renewals(self) -> None:
        """Note what is renewed now: later on its task alone knows of it."""
        for loop, connection in tuple(self._by_loop.items()):
            for renewal in connection.waiting_renewals():
                if isinstance(renewal, Renewal):
                    self._note(loop, renewal)
        for renewal, renewed in tuple(self._renewed.items()):
            if renewed.life is None:
                self._renewed.pop(renewal, None)

    def _note(self, loop: asyncio.AbstractEventLoop, renewal: Renewal) -> None:
        # Its lease began now: the clock has not moved since it was looked for.
        if renewal not in self._renewed:
            self._renewed[renewal] = Renewed(loop, renewal, self._store.clock.now)

    def _time_passes(self, seconds: float) -> None:
        self._look_for_renewals()
        for each in tuple(self._renewed.values()):
            each.time_passes(self._store, seconds)

    def _store_is_back(self) -> None:
        for loop, connection in tuple(self._by_loop.items()):
            _take_back(connection, self._store)
            in_loop(loop, partial(_tell_that_it_is_back, connection))


def _ends(connection: Connection, loop: asyncio.AbstractEventLoop) -> bool:
    """True where a connection is being closed in this loop, or the loop ends: it is not to be opened again."""
    engine = connection.last_engine
    if engine is None or engine.loop is not loop:
        return False
    return connection.has_loop_ended or connection.is_closing


def _at_once(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration:
        return
    work.close()
    raise AssertionError("opening a connection on a store in memory waits for nothing")


def _take_back(connection: Connection, store: FakeStore) -> None:
    """Free what was given up in the outage. The gate does that soon; a test's next claim must not come before."""
    for (wire, owner), given_up in connection.undo.orphans():
        if given_up.id is not None:
            continue
        (record,) = store.apply(Verb.READ, [ReadOp(wire)])
        if isinstance(record, Stored) and is_held(record, owner, given_up):
            store.apply(Verb.RELEASE, [ReleaseOp(wire, owner, record.fence, consumed=given_up.consumed)])


def _tell_that_it_is_back(connection: Connection) -> None:
    """Let all that waits for the store go on, as after a probe that succeeded."""
    engine: Any = connection.engine
    if engine is None:
        return
    if engine.breaker is BreakerState.OPEN:
        engine.store_is_back()
        return
    connection.retry_now(FakeStore.name)


def _stop(connection: Connection) -> None:
    for reconciler in connection.reconcilers():
        reconciler.cancel()
