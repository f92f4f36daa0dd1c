"""What all namespaces of one `Dedup` share: the store, the engine that feeds it, and those who wait for keys."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar, cast

from ..checks import Seconds, check_count, check_seconds, shown
from ..decorated import DecoratedFunctions
from ..errors import ConfigError, UnavailableError, UsageError
from ..events import BreakerClosed, BreakerOpened, Event, OnEvent, log_batch_failure, log_failure
from ..fallback.base import JournalledPolicy
from ..fallback.reconcile import Reconciler
from ..forking import InChild
from ..kernel.answers import wrong_loop
from ..kernel.engine import Engine, OnBatch, OnStoreCall
from ..kernel.operations import ClaimOp, Op, ReleaseOp, Reply
from ..kernel.queue import MIN_BATCH
from ..kernel.shards import ShardedEngine
from ..model import Batching, BreakerState
from ..stores import make_store
from ..stores.base import (
    RECORD_HEAD,
    BoundedStore,
    ClockComparingStore,
    ClockedStore,
    Credentials,
    DegradingStore,
    ListeningStore,
    OpeningStore,
    ReportingStore,
    ShardedStore,
    SlottedStore,
    Store,
)
from ..stores.memory import MemoryStore
from ..tasks import running_loop
from .afterwards import Afterwards
from .counters import MAX_NAMESPACES, GateCounters
from .incidents import Incidents, log
from .loop_end import LoopEnd
from .observers import Watchers
from .orphans import UndoList
from .recent import RecentSuccesses
from .renewal import RenewalQueue
from .renewing import Waiting
from .returns import Returns
from .wakeups import SHORT, Wakeups

T = TypeVar("T")

LONGEST_PAUSE = 0.4
"""Seconds between two tries to settle while the store is unavailable, at most."""
_LEASES = 64
"""Different leases whose renewals are kept, before those without any are dropped."""
_LEASE_TO_SKEW = 10
"""A lease divided by this is how far apart the clocks of two servers may be."""
_NO_PART = b"no part"
"""Stands for the part of a key that no part of the store is known to hold."""
_left_behind: list[object] = []
"""What a forked child got from its parent. Kept from the collector, which would disturb what the parent watches."""


def name_of(store: Store) -> str:
    """Return the name of a store, or of a part of one, as events show it."""
    return str(getattr(store, "name", type(store).__name__))


class Leftover:
    """What an event loop that has ended leaves to the next one.

    Attributes:
        store: with connections of the former loop, to be closed; None where it is used again.
        undo: what is still to be taken back.
        afterwards: what settled its claims after it was closed.
        policies: whose journals are still to be brought into the store.
    """

    def __init__(
        self,
        store: Store | None,
        undo: UndoList,
        afterwards: Afterwards,
        policies: list[JournalledPolicy],
    ) -> None:
        self.store = store
        self.undo = undo
        self.afterwards = afterwards
        self.policies = policies


class Connection:
    """One store, open in one event loop at a time.

    Args:
        ends_with_loop: close it when its event loop ends, if it is still open.
        the others are those of `Dedup`.

    Raises:
        ConfigError: a setting is not valid; the message names it.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        timeout: Seconds,
        max_pending: int,
        replicas: int,
        on_shortfall: str,
        known_duplicates: Seconds,
        lease: float,
        on_event: OnEvent | None,
        namespace: str,
        credentials: Credentials | None = None,
        ends_with_loop: bool = True,
    ) -> None:
        self.timeout = check_seconds(timeout, "timeout")
        self.max_pending = check_count(max_pending, "max_pending")
        self.incidents: Incidents | None = Incidents(namespace)
        """Writes the log lines; None where whoever made the gate logs its events, as the sidecar does."""
        self.on_event = on_event
        """The user's own callback; `report` calls it."""
        self.listeners: list[OnEvent] = [] if on_event is None else [on_event]
        """Called with each event: the user's callback, and what counts."""
        self.decorated = DecoratedFunctions()
        self._lease = lease
        self.on_batch: OnBatch | None = None
        """Set before opening: see `Engine`."""
        self.on_store_call: OnStoreCall | None = None
        """As `on_batch`."""
        self.min_batch = MIN_BATCH
        """As `on_batch`."""
        self.watchers = Watchers()
        """Who counts and who traces."""
        # Mutable: the first namespaces with a ledger.
        self._with_ledgers: set[str] = set()
        self.name = namespace
        """The gate's name in the log: its namespace."""
        self.own_policy: object = None
        """The gate's policy, which most scopes share: its journal is shown under the gate's name."""
        self._probe_wire = f"{namespace}:~!probe".encode()  # no ledger can have this name
        self.replicas = check_count(replicas, "replicas", least=0)
        if on_shortfall not in ("report", "raise"):
            raise ConfigError(f"on_shortfall must be 'report' or 'raise', got {shown(on_shortfall)}")
        self.raises_shortfall = on_shortfall == "raise"
        self._max_record = 0
        self._ends_with_loop = ends_with_loop
        self._credentials = credentials
        # Not the URL itself, which holds a password: whatever shows this object shows its attributes.
        self._make_store = (lambda: self._store_of(store)) if isinstance(store, str) else None
        self._make_another: Callable[[], Connection] = lambda: Connection(
            store,
            timeout=timeout,
            max_pending=max_pending,
            replicas=replicas,
            on_shortfall=on_shortfall,
            known_duplicates=False,
            lease=lease,
            on_event=None,
            namespace=namespace,
            credentials=credentials,
            ends_with_loop=False,
        )
        self.store = self._store_of(store)
        self.behind_a_policy = isinstance(self.store, DegradingStore)
        self.policy_listener = self.store if isinstance(self.store, ListeningStore) else None
        off = known_duplicates is False
        self.recent = RecentSuccesses(
            0.0 if off else check_seconds(known_duplicates, "known_duplicates", least=0.0)
        )
        self.wakeups = Wakeups()
        self.returns = Returns()
        """Callers whom a part of the store has refused, and who wait for its return: by `part_of` their keys."""
        self._set_up()

    def _set_up(self) -> None:
        """Begin as new: what belongs to an event loop is made when that opens the connection."""
        self._clocked = self.store if isinstance(self.store, ClockedStore) else None
        self._sharded = self.store if isinstance(self.store, ShardedStore) else None
        # Mutable: the engine, None before open() and after aclose(); also while closing, as what was answered
        # too late for its caller is released by it.
        self.engine: Engine | ShardedEngine | None = None
        self.last_engine: Engine | ShardedEngine | None = None
        self.undo = UndoList(self._submit, self.report, self._asks)
        # Mutable: True in a forked child, until it opens anew. Not os.getpid(), a system call for each look.
        self._forked = False
        self._in_child = InChild(self._note_fork)
        self._loop_end: LoopEnd | None = None
        self._ended = False
        self._closed = False
        self._closing: asyncio.Future[None] | None = None
        # Mutable: work that goes on when its caller is cancelled; what brings journals home; renewals by lease.
        self._kept: set[asyncio.Task[Any]] = set()
        self._afterwards = Afterwards(self._for_afterwards, self._kept, self.timeout)
        # Mutable: the kept tasks that closing has waited for; they go no further than that.
        self._given_their_time: set[asyncio.Task[Any]] = set()
        self._reconcilers: dict[int, Reconciler] = {}
        self._journals: dict[int, str] = {}
        self._renewals: dict[float, RenewalQueue] = {}
        self._tidy_at = _LEASES

    def keep_records_of(self, max_result: int) -> None:
        """Let the store return records with results of this many bytes; a larger one is refused for its key alone."""
        self._max_record = max(self._max_record, max_result + RECORD_HEAD)
        if isinstance(self.store, BoundedStore):
            self.store.max_record = max(self.store.max_record, self._max_record)

    def _store_of(self, store: Any) -> Store:
        if isinstance(store, str) or not hasattr(store, "execute"):
            return make_store(store, self.timeout, self.replicas, self._credentials)
        if self.replicas:
            raise ConfigError(
                "replicas= goes with a URL; a store object of your own waits for its replicas itself"
            )
        if self._credentials is not None:
            raise ConfigError("credentials= goes with a URL; a store object of your own logs in itself")
        return cast(Store, store)

    # Life

    @property
    def is_open(self) -> bool:
        """True between `open` and `aclose`, while the event loop that opened it exists."""
        return self.engine is not None and not self._is_loop_gone()

    @property
    def is_closing(self) -> bool:
        """True from the call of `aclose` until it has closed the store."""
        return self._closing is not None and not self._closing.done()

    @property
    def has_loop_ended(self) -> bool:
        """True once its event loop has begun to end before `aclose`, until it is opened again."""
        return self._ended

    async def open(self) -> None:
        """Open the store in the running event loop; again after closing, or where the former loop has ended.

        Raises:
            UsageError: it is open already, in a loop that still runs, or it is being closed.
            ConfigError: the store can never be used as it is set up.
        """
        gone = self._is_loop_gone()
        if self.engine is not None and not gone:
            raise UsageError("this Dedup is open already; open it once, at start-up, and share it")
        if self.is_closing and not gone:
            raise UsageError("this Dedup is being closed; await aclose() before you open it again")
        left = self._start_over() if self.last_engine is not None or self._closed else None
        store = self.store
        if isinstance(store, ShardedStore):
            self.engine = ShardedEngine(store, self._make_engine_of_part)
        else:
            self.engine = self._make_engine(store)
        self.last_engine = self.engine
        self._hear_from(store)
        try:
            await store.open()
            if self._ends_with_loop:
                self._loop_end = LoopEnd.awaited(self._end_with_loop)
        except BaseException as error:
            if self.incidents is not None and isinstance(error, ConfigError):
                self.incidents.mistaken(str(error))
            await self._give_up_opening(store)
            raise
        if self.incidents is not None and isinstance(store, OpeningStore) and store.unreached:
            self.incidents.unreached(store.unreached)
        if left is not None:
            await self._take_over(left)

    def _hear_from(self, store: Store) -> None:
        if isinstance(store, ReportingStore):
            store.on_report = self.report
        if isinstance(store, ClockComparingStore):
            store.max_clock_skew = self._lease / _LEASE_TO_SKEW

    async def _give_up_opening(self, store: Store) -> None:
        self.engine = None
        if self._make_store is not None and not isinstance(store, MemoryStore):
            with contextlib.suppress(Exception):
                await store.aclose()  # it may be connecting still

    def _is_loop_gone(self) -> bool:
        """True where the event loop that opened it is closed, or runs in the process that has forked this one."""
        engine = self.last_engine
        return engine is not None and (self._forked or engine.loop.is_closed())

    def _note_fork(self) -> None:
        self._forked = True

    def _start_over(self) -> Leftover:
        """Begin as new; return what the former loop has left. What `memory://` remembers is kept."""
        used_again = self._make_store is None or isinstance(self.store, MemoryStore)
        forked = self._forked
        if forked:
            _left_behind.extend((self.store, self.last_engine, self._loop_end, self._kept, self._closing))
            _left_behind.append(self._afterwards)
        policies = [reconciler.policy for reconciler in self._reconcilers.values()]
        former = None if used_again or forked else self.store
        left = Leftover(former, self.undo, self._afterwards, policies)
        if self._make_store is not None and not used_again:
            self.store = self._make_store()
            self.keep_records_of(0)
        self.wakeups.close()
        self.returns.close()
        self.recent.clear()
        self._set_up()
        return left

    async def _take_over(self, left: Leftover) -> None:
        await self._close_former(left)
        await left.afterwards.replaced()
        self.undo.take_over(left.undo)
        for policy in left.policies:
            self.reconcile(policy)

    async def _close_former(self, left: Leftover) -> None:
        if left.store is not None:
            with contextlib.suppress(Exception):  # closed already, but where its loop ended without a word
                await left.store.aclose()

    async def aclose(self) -> None:
        """Answer what was accepted, then close. Closing twice is fine, and so is closing when its loop has ended.

        Claims that this gate has granted are still settled, renewed and freed afterwards; see `Afterwards`.
        """
        if self._closed and self.engine is None and self._closing is None:
            return
        # A forked child in its parent's loop has no running loop.
        if self.last_engine is not None and running_loop() is not self.last_engine.loop:
            if not self._is_loop_gone():
                raise wrong_loop()
            await self._close_without_loop()
            return
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        closing = self._closing
        try:
            await asyncio.shield(closing)
        finally:
            if closing.done():  # also where it has failed: the next call tries again
                self._closing = None

    async def _close(self) -> None:
        await self._finish_work()
        self._closed = True
        await self._stop()
        for reconciler in self._reconcilers.values():
            reconciler.give_up()
        await self.store.aclose()
        self.recent.clear()
        self.wakeups.freed(None)
        self.returns.are_back()
        if self.incidents is not None:
            self.incidents.close()
        if self._loop_end is not None:
            await self._loop_end.forget()

    async def _finish_work(self) -> None:
        # What must end even when its caller is gone still needs the engine.
        if self._kept:
            await asyncio.wait(self._kept, timeout=self.timeout)
        await self.undo.finish(self.timeout)
        finished: set[Reconciler] = set()
        while left := [each for each in self._reconcilers.values() if each not in finished]:
            # A request that is still under way may let the policy of another scope give its first answer meanwhile.
            for reconciler in left:
                await reconciler.finish(self.timeout)
            finished.update(left)

    async def _stop(self) -> None:
        engine, self.engine = self.engine, None
        if engine is not None:
            await engine.drain()
        if self._kept:
            # Without an engine their next try fails, and is told.
            self._given_their_time.update(self._kept)
            await asyncio.wait(self._kept, timeout=LONGEST_PAUSE)

    async def _end_with_loop(self) -> None:
        """The event loop ends, and nobody has closed this: close the connections while they can be.

        The next loop opens it again. What `memory://` holds, what is to be taken back and the journals stay.
        """
        if self._closing is not None and not self._closing.cancelled():
            return
        self._ended = True
        with contextlib.suppress(Exception):  # nobody is there to be told
            await self._finish_work()
            await self._stop()
        for renewals in self._renewals.values():
            renewals.close()
        if not isinstance(self.store, MemoryStore):
            with contextlib.suppress(Exception):
                await self.store.aclose()
        self.recent.clear()

    async def _close_without_loop(self) -> None:
        for reconciler in self._reconcilers.values():
            reconciler.give_up()
        await self._close_former(self._start_over())
        await self.store.aclose()
        self._closed = True

    @property
    def breaker(self) -> BreakerState:
        """Whether the store is asked. CLOSED before opening: nothing is known to its disadvantage."""
        return BreakerState.CLOSED if self.engine is None else self.engine.breaker

    @property
    def batching(self) -> Batching:
        """How batches go to the store."""
        return self.store.batching if isinstance(self.store, SlottedStore) else Batching.WHOLE

    def part_of(self, wire: bytes) -> bytes:
        """Return the name of the part of the store that holds a key now, such as a node of a Cluster."""
        if self._sharded is None:
            return name_of(self.store).encode()
        try:
            return name_of(self._sharded.shard(wire)).encode()
        except UnavailableError:
            return _NO_PART

    def _make_engine_of_part(self, part: Store) -> Engine:
        # The callers are spread over the parts, so a part's batches are smaller, and fewer of them pay.
        return self._make_engine(part, min_batch=2 * MIN_BATCH, max_in_flight=2)

    def _make_engine(self, store: Store, *, min_batch: int | None = None, max_in_flight: int = 4) -> Engine:
        name = name_of(store)

        def on_breaker(reason: str, lasted: float) -> None:
            self.report(BreakerOpened(name, reason) if reason else BreakerClosed(name, lasted))
            self.retry_now(name)
            if not reason:
                self.returns.is_back(name.encode())

        return Engine(
            store,
            timeout=self.timeout,
            max_pending=self.max_pending,
            probe_wire=self._probe_wire,
            on_breaker=on_breaker,
            on_batch=self.on_batch,
            on_store_call=self.on_store_call,
            on_given_up=self.undo.add,
            on_resent=self.undo.watch,
            on_named=self.undo.keep,
            min_batch=min_batch or self.min_batch,
            max_in_flight=max_in_flight,
        )

    def retry_now(self, node: str) -> None:
        """Try at once, without waiting for a pause to end: free the orphans, bring a node's records into the store.

        `node`: the name of the store, or of a part of it, as `name_of` returns it.
        """
        self.undo.store_is_back()
        for reconciler in self._reconcilers.values():
            reconciler.store_is_back(node.encode())

    def count_for(self, counters: GateCounters) -> None:
        """Let these counters hear of batches and events; a callback of the user's for batches is called as well.

        Raises:
            UsageError: the gate is open: its engine would not know.
        """
        if self.engine is not None:
            raise UsageError("this Dedup is open already: let its metrics be counted before you open it")
        own = self.on_batch

        def on_batch(size: int) -> None:
            counters.on_batch(size)
            if own is not None:
                own(size)

        self.on_batch = counters.on_batch if own is None else on_batch
        self.on_store_call = counters.on_store_call
        self.listeners.append(counters.on_event)

    def count(self) -> GateCounters:
        """Return the counters of this gate, which count from now on. Errors as for `count_for`."""
        if self.watchers.counters is None:
            counters = GateCounters()
            self.count_for(counters)
            self.watchers.counters = counters
            for names in self.expected:
                counters.expect(*names)
        return self.watchers.counters

    @property
    def expected(self) -> list[tuple[str, ...]]:
        """Namespaces whose figures stand at 0 before the first operation; with "first" behind it, for its ids.

        Each is what `GateCounters.expect` takes.
        """
        names: list[tuple[str, ...]] = [(namespace,) for namespace in self.recent.namespaces()]
        return names + [(namespace, "first") for namespace in self._with_ledgers]

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

    def tell(self, kind: str, text: str, *args: object) -> None:
        """Log a line about a single key, where this gate logs by itself: five a minute of a kind, then a count."""
        if self.incidents is not None:
            self.incidents.tell(kind, text, *args)

    def report(self, event: Event) -> None:
        """Log an event, and hand it to the user's callback. An error of that is logged, and changes no answer."""
        if self.incidents is not None:
            self.incidents(event)
        for listener in self.listeners:
            try:
                listener(event)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 -- no callback may stop a claim
                if self.incidents is None or self.incidents.may_tell(
                    f"failed on_event: {type(event).__name__}", 1
                ):
                    log_failure(event, error)

    def hear_batches(self, callback: OnBatch) -> None:
        """Call a user's function with the size of each batch. An error of that is logged, and stops no batch."""
        counters = self.watchers.counters

        def heard(size: int) -> None:
            if counters is not None:
                counters.on_batch(size)
            try:
                callback(size)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 -- the batch must still be sent
                if self.incidents is None or self.incidents.may_tell("failed on_batch", 1):
                    log_batch_failure(error)

        self.on_batch = heard

    def reconcile(self, policy: JournalledPolicy, namespace: str = "") -> bool:
        """A policy has answered: what it made is brought into the store as soon as that takes it.

        Return False if the gate is closed: then only its next opening brings it there.
        """
        name = self.name if policy is self.own_policy else namespace
        if name:
            self._journals.setdefault(id(policy), name)
        reconciler = self._reconcilers.get(id(policy))
        if reconciler is None:
            reconciler = Reconciler(
                policy,
                self._submit,
                self.part_of,
                self.report,
                done=lambda: self.wakeups.freed(None),
                given_up=lambda: self.undo.all(),
            )
            self._reconcilers[id(policy)] = reconciler
        if self._closing is None and not self._closed:
            reconciler.wake()
        return self._closing is not None or not self._closed

    def reconcilers(self) -> tuple[Reconciler, ...]:
        """Return what brings journals into the store: one for each policy that has answered."""
        return tuple(self._reconcilers.values())

    def journals(self) -> dict[str, int]:
        """Return how many records each journal has for the store, by the namespace of its policy's gate."""
        found = self._reconcilers.items()
        return {self._journals.get(number, ""): each.policy.lines for number, each in found}

    def undo_counts(self) -> tuple[int, int]:
        """Return how many claims and ids that were given up were taken back, and how many are still to be."""
        return self.undo.undone, len(self.undo)

    async def listens(self) -> bool:
        """Hear of freed keys from now on. False: the store tells of none at present."""
        return await self.wakeups.listen(self.store)

    def tell_deaf(self, pause: float) -> None:
        """Log, once for each loss, that waiters hear of no freed keys and look every `pause` seconds instead."""
        self._tell_deaf(
            SHORT,
            "gate %r: the store answers but tells of no freed keys, so waiters look every %g s: %s",
            pause,
        )

    def _tell_deaf(self, short: float, text: str, *values: Any) -> None:
        why = self.wakeups.why_deaf(short)
        if why and (self.incidents is None or self.incidents.may_tell("waiters hear of no freed keys")):
            log.warning(text, self.name, *values, why)

    async def overhear(self, on_freed: Callable[[bytes | None], None]) -> Callable[[], None]:
        """Call `on_freed` for all that wakes a waiter, as `Store.listen` does; return what ends that.

        Raises:
            UnavailableError: the store cannot be listened to just now. If that lasts, a line in the log says why.
        """
        if not await self.listens():
            # Before the clients have lines of their own, which refer to this one.
            self._tell_deaf(
                SHORT / 2,
                "gate %r: the store tells of no freed keys, so the clients' waiters look instead: %s",
            )
            raise UnavailableError("the store tells of no freed keys")
        self.wakeups.overheard_by.add(on_freed)
        return partial(self.wakeups.overheard_by.discard, on_freed)

    def _submit(self, op: Op) -> asyncio.Future[Reply]:
        return self.running_engine().submit(op)

    def _asks(self, wire: bytes) -> bool:
        return self.engine is None or self.engine.asks(wire)

    def disown(self, op: ClaimOp) -> None:
        """Release a claim whose caller was cancelled, also while closing."""
        if self.last_engine is not None:
            self.last_engine.disown(op)

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

    # After closing

    def begin_afterwards(self, op: Op) -> asyncio.Future[Reply]:
        """Send an operation on a claim that this gate granted before it was closed.

        Raises:
            UsageError: not possible: it was never open, its loop has ended, or nothing outlives its store.
        """
        self.check_afterwards()
        return self.keep(self._afterwards.run(op))

    def check_afterwards(self) -> None:
        """Raise what `begin_afterwards` raises."""
        if not self._settles_afterwards or asyncio.current_task() in self._given_their_time:
            raise self.not_open()
        if self.last_engine is not None and running_loop() is not self.last_engine.loop:
            raise wrong_loop()

    @property
    def _settles_afterwards(self) -> bool:
        if not self._closed or self.last_engine is None or self._is_loop_gone() or self._afterwards.is_over:
            return False
        return self._make_store is not None and not isinstance(self.store, MemoryStore)

    def _for_afterwards(self) -> Connection:
        connection = self._make_another()
        connection.incidents = None
        connection.keep_records_of(self._max_record - RECORD_HEAD)
        return connection

    def free_soon(self, op: ClaimOp, fence: int, *, asked: bool = False) -> None:
        """Free a key as soon as the store answers; after closing, try it once. See `UndoList.add`."""
        if not self.undo.is_closed:
            self.undo.add(op, fence, asked=asked)
        elif self._settles_afterwards:
            self.keep(self._afterwards.run(ReleaseOp(op.wire, op.owner, fence)))

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop in which it is open; None where it is not."""
        return None if self.engine is None else self.engine.loop

    @property
    def store_time_us(self) -> int:
        """The store's time, in microseconds since 1970; 0 where it has told none."""
        return 0 if self._clocked is None else self._clocked.time_us

    @property
    def unfinished(self) -> int:
        """How many tasks go on although their callers may be gone; `aclose` waits for them. See `keep`."""
        return len(self._kept)

    def not_open(self) -> UsageError:
        """The error for a call before opening or after closing."""
        if self._closed:
            return UsageError("this Dedup is closed; open it again first")
        if self._ended:
            return UsageError(
                "the event loop in which this Dedup was open has ended; open it again in this one"
            )
        return UsageError("this Dedup is not open: use `async with dedup:` or `await dedup.open()` first")

    def renewals(self, lease: float) -> RenewalQueue:
        """Return the queue of renewals of that lease, in seconds."""
        queue = self._renewals.get(lease)
        if queue is None:
            if len(self._renewals) >= self._tidy_at:
                # Most programs have one lease or two; some make one up for each claim.
                self._renewals = {each: queue for each, queue in self._renewals.items() if queue.waits}
                self._tidy_at = max(_LEASES, 2 * len(self._renewals))
            queue = self._renewals[lease] = RenewalQueue(asyncio.get_running_loop(), lease)
        return queue

    def waiting_renewals(self) -> list[Waiting]:
        """Return the renewals that wait for the first third of their lease to be over."""
        return [renewal for queue in self._renewals.values() for renewal in queue.waiting()]

    def keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run work that must end even when its caller is cancelled; aclose waits for it."""
        if self.engine is None and self._settles_afterwards:
            self._afterwards.watch_loop()
        task = asyncio.get_running_loop().create_task(work)
        self._kept.add(task)
        task.add_done_callback(self._kept_done)
        return task

    def _kept_done(self, task: asyncio.Task[Any]) -> None:
        self._kept.discard(task)
        self._given_their_time.discard(task)
        if not task.cancelled():
            task.exception()  # a caller that was cancelled does not fetch it; the lease ends by itself
