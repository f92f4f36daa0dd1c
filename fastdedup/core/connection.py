"""A gate's connection in one event loop: the store, the engine that feeds it, and the waiters for keys."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, TypeVar

from ..errors import ConfigError, UnavailableError, UsageError
from ..events import BreakerClosed, BreakerOpened
from ..fallback.base import JournalledPolicy, OneLoopPolicy
from ..fallback.reconcile import Reconciler
from ..forking import InChild, leave_behind
from ..kernel.answers import wrong_loop
from ..kernel.engine import Engine
from ..kernel.operations import ClaimOp, Op, ReleaseOp, Reply
from ..kernel.orphans import becomes_orphan
from ..kernel.queue import MIN_BATCH
from ..kernel.records import RECORD_HEAD
from ..kernel.shards import ShardedEngine
from ..kernel.store import BatchStore
from ..model import Batching, BreakerState
from ..stores.base import ClockedStore, ConfiguredStore, ShardedStore
from ..stores.source import StoreSource
from ..tasks import running_loop
from .afterwards import Afterwards
from .common import Common
from .journals import Journals
from .loop_end import LoopEnd, at_loop_end
from .orphans import Orphans
from .renewal import Renewals
from .wakeups import LookTurns, OutageWaiters, Wakeups

T = TypeVar("T")
Sender = Engine | ShardedEngine | Afterwards
"""Sends an operation: the engine's method, or after closing the one of `Afterwards`."""

LONGEST_PAUSE = 0.4
"""The most seconds between two tries to settle while the store is unavailable."""
_LEASE_TO_SKEW = 10
"""The clocks of two servers may differ by a lease divided by this."""
LOOKS_AT_ONCE = 1000
"""Waiting claims that look at a time: thousands would keep the loop busy until all of them miss their deadline."""
_NO_PART = b"no part"
"""The part's name of a key if its part of the store is unknown."""


def name_of(store: BatchStore) -> str:
    """Return the name of a store, or of a part of one, for events."""
    return str(getattr(store, "name", type(store).__name__))


class Connection:
    """One store, open in one event loop: it is opened once and closed once. The next loop gets another connection.

    Args:
        common: the part that all connections of its gate share.
        stores: gives it its store.
        wakeups: the waiters for keys, if the former connection had the same store and registered them there.
        on_engine: called with the engine when it can be used, and with None when it no longer can.
        ends_with_loop: close it when its event loop ends, if it is still open.
    """

    def __init__(
        self,
        common: Common,
        stores: StoreSource,
        *,
        wakeups: Wakeups | None = None,
        on_engine: Callable[[Engine | ShardedEngine | None], None] = lambda engine: None,
        ends_with_loop: bool = True,
    ) -> None:
        self._common = common
        self._stores = stores
        self._on_engine = on_engine
        self._ends_with_loop = ends_with_loop
        self.timeout = common.timeout
        self.report = common.report
        """Log an event, and pass it to the user's callback."""
        self.store = store = stores.next()
        self._clocked = store if isinstance(store, ClockedStore) else None
        self._sharded = store if isinstance(store, ShardedStore) else None
        self.behind_a_policy = hasattr(store, "degrades")
        """True for a sidecar's store: its answers may be `degraded`, and such claims are still settled there."""
        self.policy_answered: Callable[[Op, Reply], None] | None = getattr(store, "policy_answered", None)
        """Called with each answer of the policy in the store's place; only a store for tests learns of them."""
        self.keep_records()
        self.wakeups = Wakeups(common) if wakeups is None else wakeups
        self.look_turns = LookTurns(LOOKS_AT_ONCE)
        """Which waiting claims may look now."""
        self.outage_waiters = OutageWaiters()
        """Callers that a part of the store has refused, and that wait for its return; by `part_of` of their keys."""
        self.orphans = Orphans(self._submit, self.report, self._asks)
        """The orphans: claims and ids to be freed."""
        self.journals = Journals(self._make_reconciler)
        """Answers of policies that must be written into the store."""
        self.renewals = Renewals()
        # Mutable: the engine, None before open() and after aclose(); the same also while closing, because it
        # releases claims that were answered too late for their callers.
        self.engine: Engine | ShardedEngine | None = None
        self._last_engine: Engine | ShardedEngine | None = None
        # Mutable: True in a forked child. Not os.getpid(), which is a system call for each check.
        self._forked = False
        self._in_child = InChild(self._note_fork)
        self._loop_end: LoopEnd | None = None
        self.has_loop_ended = False
        """True once its event loop has begun to end before `aclose`."""
        self._closed = False
        self._closing: asyncio.Future[None] | None = None
        self._afterwards = Afterwards(self._for_afterwards, self.timeout)

    def keep_records(self) -> None:
        """Let the store return records with the largest results of all scopes."""
        if isinstance(self.store, ConfiguredStore):
            self.store.max_record = max(self.store.max_record, self._common.max_result + RECORD_HEAD)

    # Life

    @property
    def is_new(self) -> bool:
        """True until it is opened, or closed unopened."""
        return self._last_engine is None and not self._closed

    @property
    def is_open(self) -> bool:
        """True between `open` and `aclose`, while the event loop that opened it exists."""
        return self.engine is not None and not self.is_loop_gone

    @property
    def is_closing(self) -> bool:
        """True from the call of `aclose` until it has closed the store."""
        return self._closing is not None and not self._closing.done()

    @property
    def is_loop_gone(self) -> bool:
        """True if the event loop that opened it is closed, or runs in the process that has forked this one."""
        engine = self._last_engine
        return engine is not None and (self._forked or engine.loop.is_closed())

    def _note_fork(self) -> None:
        self._forked = True
        if self._last_engine is not None:
            leave_behind(self)  # its objects belong to the parent too

    async def open(self, former: Connection | None = None) -> None:
        """Open the store in the running event loop.

        Args:
            former: the gate's connection before, which is closed, or whose loop has ended. Its unfinished work is
                done here.

        Raises:
            UsageError: it was opened before.
            ConfigError: the store cannot be used with its present set-up.
        """
        if not self.is_new:
            raise UsageError("this Dedup is open already; open it once, at start-up, and share it")
        store, incidents = self.store, self._common.incidents
        if isinstance(store, ShardedStore):
            self._last_engine = ShardedEngine(store, self._make_engine_of_part)
        else:
            self._last_engine = self._make_engine(store)
        self._use(self._last_engine)
        if isinstance(store, ConfiguredStore):
            store.on_report = self.report
            store.max_clock_skew = self._common.lease / _LEASE_TO_SKEW
        try:
            unreached = await store.open()
            if former is not None:
                await former.leave()
            if self._closed:  # meanwhile
                raise self.not_open()
            if self._ends_with_loop:
                self._loop_end = at_loop_end(self._end_with_loop)
        except BaseException as error:
            if incidents is not None and isinstance(error, ConfigError):
                incidents.mistaken(str(error))
            self._use(None)
            await self._close_own_store()  # it may still be connecting
            raise
        if incidents is not None and unreached:
            incidents.unreached(unreached)
        if former is not None:
            self.orphans.take_over(former.orphans)
            for policy, namespace in former.journals.policies():
                self.reconcile(policy, namespace)

    def _use(self, engine: Engine | ShardedEngine | None) -> None:
        self.engine = engine
        self._on_engine(engine)

    async def leave(self) -> None:
        """Close everything that the end of the loop has left open, because another connection takes over."""
        await self._close_own_store()  # it is still open if its loop ended without notice
        await self._afterwards.replaced()

    async def _close_own_store(self) -> None:
        if self._stores.has_several and not self._forked:
            with contextlib.suppress(Exception):
                await self.store.aclose()

    async def aclose(self) -> None:
        """Answer the accepted operations, then close. Closing twice is fine, also after its loop has ended.

        Claims that this gate has granted are still settled, renewed and freed afterwards; see `Afterwards`.
        """
        if self._closed and self.engine is None and self._closing is None:
            return
        # A forked child in its parent's loop has no running loop.
        if self._last_engine is not None and running_loop() is not self._last_engine.loop:
            if not self.is_loop_gone:
                raise wrong_loop()
            await self._close_without_loop()
            return
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        closing = self._closing
        try:
            await asyncio.shield(closing)
        finally:
            if closing.done():  # also if it has failed: the next call tries again
                self._closing = None

    async def _close(self) -> None:
        await self._finish_work()
        self._closed = True
        await self._stop()
        self._leave_journals()
        await self.store.aclose()
        self.wakeups.freed(None)
        self.outage_waiters.are_back()
        if self._common.incidents is not None:
            self._common.incidents.close()
        if self._loop_end is not None:
            await self._loop_end.aclose()

    async def _finish_work(self) -> None:
        # Tasks that must end even if their callers are gone still need the engine.
        await self._afterwards.wait(self.timeout)
        await self.orphans.finish(self.timeout)
        await self.journals.finish(self.timeout)

    async def _stop(self) -> None:
        engine = self.engine
        self._use(None)
        if engine is not None:
            await engine.drain()
        # Without an engine their next try fails, and that is logged.
        self._afterwards.end_their_time()
        await self._afterwards.wait(LONGEST_PAUSE)

    async def _end_with_loop(self) -> None:
        """Close the connections at the event loop's end, if the gate is not closed.

        The next loop's connection takes over. The records of `memory://`, the orphans and the journals stay.
        """
        if self._closing is not None and not self._closing.cancelled():
            return
        self.has_loop_ended = True
        with contextlib.suppress(Exception):  # no caller is left to get the error
            await self._finish_work()
            await self._stop()
        self.renewals.close()
        if not self._stores.forgets:
            with contextlib.suppress(Exception):
                await self.store.aclose()

    async def _close_without_loop(self) -> None:
        """Close it after its event loop has ended, so nothing can be awaited there."""
        self._leave_journals()
        self._use(None)
        self._closed, self._closing = True, None
        if self._stores.has_several:
            await self.leave()
        else:
            await self.store.aclose()

    def not_open(self) -> UsageError:
        """The error for a call before opening or after closing."""
        if self._closed:
            return UsageError("this Dedup is closed; open it again first")
        if self.has_loop_ended:
            return UsageError(
                "the event loop in which this Dedup was open has ended; open it again in this one"
            )
        return UsageError("this Dedup is not open: use `async with dedup:` or `await dedup.open()` first")

    # The engine

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop in which it is open; None if it is not."""
        return None if self.engine is None else self.engine.loop

    @property
    def breaker(self) -> BreakerState:
        """Whether operations are sent to the store. CLOSED before opening, because no failure is known."""
        return BreakerState.CLOSED if self.engine is None else self.engine.breaker

    @property
    def batching(self) -> Batching:
        """The way in which batches go to the store."""
        return Batching.WHOLE if self._sharded is None else self._sharded.batching

    @property
    def store_time_us(self) -> int:
        """The store's time, in microseconds since 1970; 0 if it has given none."""
        return 0 if self._clocked is None else self._clocked.time_us

    def part_of(self, wire: bytes) -> bytes:
        """Return the name of the part of the store that holds a key now, such as a node of a Cluster."""
        if self._sharded is None:
            return name_of(self.store).encode()
        try:
            return name_of(self._sharded.shard(wire)).encode()
        except UnavailableError:
            return _NO_PART

    def running_engine(self) -> Engine | ShardedEngine:
        """Return the engine, in the event loop that it belongs to.

        Raises:
            UsageError: not open, closed, or called from another event loop.
        """
        engine = self.engine
        if engine is None:
            raise self.not_open()
        if running_loop() is not engine.loop:
            raise wrong_loop()
        return engine

    def sender(self, *, granted: bool) -> Sender:
        """Return the function that sends an operation; `granted`: for a claim of this gate, also after closing.

        Raises:
            UsageError: see `running_engine`; or after closing the store is gone, or its loop has ended.
        """
        if not granted or self.engine is not None:
            return self.running_engine()
        if not self._settles_afterwards or self._afterwards.is_late():
            raise self.not_open()
        if self._last_engine is not None and running_loop() is not self._last_engine.loop:
            raise wrong_loop()
        return self._afterwards

    def _make_engine_of_part(self, part: BatchStore) -> Engine:
        # The callers are spread over the parts, so a part's batches are smaller, and fewer of them pay.
        return self._make_engine(part, min_batch=2 * MIN_BATCH, max_in_flight=2)

    def _make_engine(
        self, store: BatchStore, *, min_batch: int | None = None, max_in_flight: int = 4
    ) -> Engine:
        name = name_of(store)

        def on_breaker(reason: str, lasted: float) -> None:
            self.report(BreakerOpened(name, reason) if reason else BreakerClosed(name, lasted))
            self.retry_now(name)
            if not reason:
                self.outage_waiters.is_back(name.encode())

        common = self._common
        return Engine(
            store,
            timeout=self.timeout,
            max_pending=common.max_pending,
            probe_wire=f"{common.name}:~!probe".encode(),  # no ledger can have this name
            on_breaker=on_breaker,
            observer=common.batch_observer,
            orphans=self.orphans,
            min_batch=min_batch or common.min_batch,
            max_in_flight=max_in_flight,
        )

    def _submit(self, op: Op) -> asyncio.Future[Reply]:
        return self.running_engine().submit(op)

    def _asks(self, wire: bytes) -> bool:
        return self.engine is None or self.engine.asks(wire)

    def _make_reconciler(self, policy: JournalledPolicy) -> Reconciler:
        done = partial(self.wakeups.freed, None)
        return Reconciler(policy, self._submit, self.part_of, self.report, done, self.orphans.held_keys)

    # Unfinished work

    def retry_now(self, node: str) -> None:
        """Try at once, without the rest of a pause: free the orphans, write a node's records into the store.

        `node`: the name of the store, or of a part of it, from `name_of`.
        """
        self.orphans.retry_now()
        self.journals.store_is_back(node.encode())

    def reconcile(self, policy: JournalledPolicy, namespace: str = "") -> bool:
        """Write the records of a policy that has answered into the store, as soon as the store takes them.

        Return False if the gate is closed: then only its next opening writes them.
        """
        reconciler = self.journals.add(
            policy, self._common.name if policy is self._common.policy else namespace
        )
        if self._closing is None and not self._closed:
            reconciler.wake()
        return self._closing is not None or not self._closed

    def _leave_journals(self) -> None:
        """Leave the records that the store never got to another open gate with the same policy, or report them."""
        here = running_loop()
        for policy, namespace in self.journals.policies():
            gates: Iterable[Connection] = policy.connections if isinstance(policy, OneLoopPolicy) else ()
            heirs = (each for each in gates if each.is_open and not each.is_closing and each.loop is here)
            if (heir := next(heirs, None)) is not None:
                heir.reconcile(policy, namespace)
                continue
            for event in policy.give_up():
                self.report(event)

    def free_orphan(self, op: ClaimOp) -> None:
        """Release a claim whose caller was cancelled, also while closing."""
        if self._last_engine is not None:
            self._last_engine.free_orphan(op)

    def becomes_orphan(self, op: ClaimOp, answer: Any) -> bool:
        """Note that a claim's caller is gone; return True if its key must be freed. See `kernel/orphans.py`."""
        return self._last_engine is not None and becomes_orphan(op, answer, self._last_engine.named)

    def is_asked_for(self, wire: bytes, owner: bytes) -> bool:
        """True while a claim is under way for a key and an owner that the caller chose."""
        return self._last_engine is not None and (wire, owner) in self._last_engine.named.open

    def free_soon(self, op: ClaimOp, fence: int, *, asked: bool = False) -> None:
        """Free a key as soon as the store answers; after closing, try it once. See `Orphans.add`."""
        if not self.orphans.is_closed:
            self.orphans.add(op, fence, asked=asked)
        elif self._settles_afterwards:
            self._afterwards.submit(ReleaseOp(op.wire, op.owner, fence))

    # After closing

    @property
    def _settles_afterwards(self) -> bool:
        if not self._closed or self._last_engine is None or self.is_loop_gone or self._afterwards.is_over:
            return False
        return self._stores.has_several

    def _for_afterwards(self) -> Connection:
        return Connection(self._common.unheard(), self._stores, ends_with_loop=False)

    @property
    def unfinished(self) -> int:
        """The number of tasks that go on although their callers may be gone; `aclose` waits for them. See `keep`."""
        return len(self._afterwards)

    def keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run work that must end even when its caller is cancelled; aclose waits for it."""
        if self.engine is None and self._settles_afterwards:
            self._afterwards.watch_loop()
        return self._afterwards.keep(work)
