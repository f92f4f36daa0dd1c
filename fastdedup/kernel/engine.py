"""Gathers the concurrent operations of one event loop into batches: the main path of every claim.

`submit` puts an operation into the queue of its verb. At the end of the loop's current turn `_flush` takes
batches from the queues in turn, while fewer than `max_in_flight` batches are under way. So a single call is sent
at once, and under load a batch gathers the operations that arrive while other batches are under way.
There is no timer and no task per operation: one timer serves all batches.

Concurrent claims for one key with equal terms become one operation: the first claim leads, the others follow and
are answered from its reply, as if they had arrived directly after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from math import inf
from threading import get_ident
from typing import Any, Final, NoReturn, cast

from ..errors import ConfigError, UnavailableError
from ..forking import InChild
from ..model import BreakerState
from .answers import closed, copy_of, give, give_error, reply_to_follower, reported, too_many, wrong_loop
from .codes import Code
from .deadline import BLOCKED, Deadline
from .health import OnChange, StoreHealth
from .named import NamedClaims
from .operations import ClaimOp, Op, Reply, Verdict
from .orphans import NoOrphans, OrphanKeeper, becomes_orphan, resent
from .queue import MIN_BATCH, Batch, Batches, BatchObserver, Ended, OperationQueue
from .replies import Redirect, RefusedAlone, StoreRefusal
from .store import BatchStore
from .verbs import Verb

_OPEN: Final = BreakerState.OPEN  # naming an enum's member through its class costs 50 ns on Python 3.11
_AGAIN: Final = Code.AGAIN
_CLAIM: Final = Verb.CLAIM
HandOver = Callable[["Engine", Op, Any], None]
"""Called with an engine, an operation that has left it, and the node of the store that it must go on to."""


class Engine:
    """Batches for one store, in one event loop.

    Args:
        timeout: seconds from submitting an operation to its answer, or to UnavailableError.
        max_batch: the most operations in a batch; a script blocks Redis for about 2 µs for each.
        max_bytes: the most bytes of results in a batch.
        min_batch: claims in a batch, below which they are not spread over further batches.
        max_in_flight: batches under way at once.
        max_pending: operations that may wait or be under way; any further operation gets UnavailableError.
        probe_wire: a store key without a record, for the test whether the store is back.
        on_breaker: called when the breaker has opened or closed.
        observer: called for each batch that has ended.
        orphans: takes the claims that may hold a key although no caller knows of them; see `Orphans`.
    """

    def __init__(
        self,
        store: BatchStore,
        *,
        timeout: float,
        max_batch: int = 256,
        max_bytes: int = 1024 * 1024,
        min_batch: int = MIN_BATCH,
        max_in_flight: int = 4,
        max_pending: int = 65_536,
        probe_wire: bytes = b"fastdedup:~!probe",
        on_breaker: OnChange | None = None,
        observer: BatchObserver | None = None,
        orphans: OrphanKeeper | None = None,
    ) -> None:
        self._timeout = timeout
        self._max_in_flight = max_in_flight
        self._max_pending = max_pending
        self._on_breaker = on_breaker
        self._orphans: OrphanKeeper = NoOrphans() if orphans is None else orphans
        self._health = StoreHealth(store, timeout=timeout, wire=probe_wire, on_change=self._breaker_changed)
        # Mutable: how many operations may be pending; 0 once closed and while the breaker is open, so that one
        # comparison finds every reason to refuse.
        self._room = max_pending
        self._loop = asyncio.get_running_loop()
        self._thread_id = get_ident()
        # Mutable: the waiting operations; how many wait or are under way; the batches under way; the timer.
        self._queue = OperationQueue(
            max_batch=max_batch, max_bytes=max_bytes, min_batch=min_batch, drop_unsent=self._drop_unsent
        )
        self._claims = self._queue.claims
        self._pending = 0
        self._batches = Batches(store, self._loop, timeout, observer, self._ended)
        self._under_way = self._batches.under_way
        self._flushing = False
        self._troubled = False
        self._closed = False
        self._now = 0.0
        self._deadline = Deadline(self._loop, timeout, self._earliest_deadline, self._come_due)
        self._drained: asyncio.Future[None] | None = None
        self.leaders: dict[bytes, ClaimOp] = {}
        """For each store key the claim that leads: the one whose answer decides for its followers."""
        # Mutable: the leaders of waiters that certainly were not sent yet.
        self._unsent: dict[bytes, ClaimOp] = {}
        self._in_child = InChild(self._leave_to_parent)
        self.named = NamedClaims()
        """The claims of caller-chosen owners; all parts of a store share one."""
        self.hand_over: HandOver | None = None
        """Set if the store is made of parts."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that this engine belongs to."""
        return self._loop

    @property
    def pending(self) -> int:
        """The number of operations that wait or are under way."""
        return self._pending

    @property
    def in_flight(self) -> int:
        """The number of batches under way."""
        return len(self._under_way)

    @property
    def breaker(self) -> BreakerState:
        """OPEN while the store does not answer; then only probes are sent to it."""
        return self._health.state

    def store_is_back(self) -> None:
        """Close an open breaker without a probe: the caller knows that the store answers again."""
        self._health.store_is_back()

    def asks(self, wire: bytes) -> bool:
        """True if an operation on this store key would be sent; False while the breaker is open."""
        return self._health.state is not _OPEN

    def submit(self, op: Op, future: Any = None) -> asyncio.Future[Reply]:
        """Accept an operation and return the future of its reply. `future`: see `claim`.

        Raises:
            UnavailableError: the breaker is open, or `max_pending` operations are pending.
            UsageError: the engine is closed.
        """
        if self._pending >= self._room or get_ident() != self._thread_id:
            self._refuse()
        return self._enqueue(op, future)

    def claim(self, op: ClaimOp, future: Any = None) -> asyncio.Future[Reply]:
        """Accept a claim and return the future of its reply; the main path of every claim.

        If the owner was drawn by the library and an equal claim is under way, this claim follows that claim.
        `future`: takes the reply; any object with a future's done, set_result and set_exception.
        """
        # Written without calls, like `_deliver_claims`: each call here costs 2 % of a claim.
        if self._pending >= self._room or get_ident() != self._thread_id:
            self._refuse()
        if not self._flushing:
            self._flush_soon()  # first, because it raises in another event loop, and then nothing may have changed
        taker: asyncio.Future[Reply] = self._loop.create_future() if future is None else future
        op.future = taker
        if op.named or not op.terms.shared:
            return self._claim_alone(op)
        leader = self.leaders.setdefault(op.wire, op)
        if leader is not op:
            return self._follow(leader, op)
        self._pending += 1
        op.at = self._now
        self._claims.append(op)
        return taker

    def _claim_alone(self, op: ClaimOp) -> asyncio.Future[Reply]:
        """Accept a claim that neither leads nor follows: it has a caller-chosen owner, or claims a token.

        This also takes a claim whose success a ledger remembers: it leads or follows.
        """
        if op.terms.remembered and not op.named:
            leader = self.leaders.setdefault(op.wire, op)
            if leader is not op:
                return self._follow(leader, op)
        self._put(op)
        if op.named:
            self._orphans.leave_to_owner(op)
            self.named.add(op)
        return op.future

    def _follow(self, leader: ClaimOp, op: ClaimOp) -> asyncio.Future[Reply]:
        if leader.terms is not op.terms or leader.fingerprint != op.fingerprint:
            self._put(op)
            return op.future
        if op.terms.watch and self._unsent.get(op.wire) is not leader:
            # The store may have answered the leader before this waiter began to listen: then it would miss the
            # message.
            self.leaders[op.wire] = self._unsent[op.wire] = op
            self._put(op)
            return op.future
        self._pending += 1
        op.at = leader.at
        if not leader.followers:
            if leader.followers is None:
                leader.witness = None
            leader.followers = []  # its own, not the NOBODY that all share
        leader.followers.append(op)
        return op.future

    def take_over(self, op: Op) -> None:
        """Accept an operation that has left the engine of another part; also while this engine is drained.

        It keeps the time that it has left, but at least half of the timeout: a late operation must not make its new
        batch late. If it is refused, its caller gets that error.
        """
        if self._pending >= self._max_pending or self._health.state is _OPEN:
            self.refuse(op, self._refusal())
            return
        if isinstance(op, ClaimOp):
            self._pending += len(op.followers or ())
        if not self._flushing:
            self._flush_soon()
        self._pending += 1
        op.at = max(op.at, self._now - self._timeout / 2)
        self._queue.put_by_age(op)
        self._deadline.bring_forward(op.at + self._timeout)

    def refuse(self, op: Op, error: BaseException) -> None:
        """Give an error to the callers of an operation that has left an engine and goes no further."""
        if isinstance(op, ClaimOp):
            self._pending += len(op.followers or ())  # `_fail` counts them down
        self._fail(op, error, sent=False)

    def free_orphan(self, op: ClaimOp) -> None:
        """Release a claim whose caller was cancelled after the answer had arrived."""
        future = op.future
        if future.done() and not future.cancelled() and future.exception() is None:
            self._free_orphan(op, future.result())

    def _free_orphan(self, op: ClaimOp, reply: Reply) -> bool:
        """Release the key if a claim without a caller has acquired it; return whether it has."""
        if not becomes_orphan(op, reply, self.named):
            return False
        self._orphans.free(op, cast(Verdict, reply).fence, self._enqueue)
        return True

    async def drain(self) -> None:
        """Refuse new operations and wait until the accepted operations are answered, for `timeout` at most."""
        self._closed = True
        self._room = 0
        await self._health.aclose()
        if self._pending or self._under_way:
            self._drained = self._loop.create_future()
            await self._drained
            self._drained = None
        self._deadline.cancel()

    async def leave(self) -> None:
        """Drain, because the store is gone for good. An open breaker closes, because no answer will come."""
        await self.drain()
        self._health.store_is_back()

    def _leave_to_parent(self) -> None:
        """Refuse every operation in a forked child: the operations here belong to the parent."""
        self._room = self._thread_id = 0
        self._orphans = NoOrphans()

    def _refuse(self) -> NoReturn:
        if self._closed:
            raise closed()
        if get_ident() != self._thread_id:
            raise wrong_loop()
        raise self._refusal()

    def _refusal(self) -> UnavailableError:
        if self._health.state is _OPEN:
            return self._health.error()
        return too_many(self._pending)

    def _enqueue(self, op: Op, future: Any = None) -> asyncio.Future[Reply]:
        taker: asyncio.Future[Reply] = self._loop.create_future() if future is None else future
        op.future = taker
        self._put(op)
        return taker

    def _put(self, op: Op) -> None:
        if not self._flushing:
            self._flush_soon()
        self._pending += 1
        op.at = self._now
        self._queue.put(op)

    def _flush_soon(self) -> None:
        """Flush at the end of this turn of the loop. All operations of this turn share one reading of the clock."""
        if asyncio.get_running_loop() is not self._loop:
            raise wrong_loop()
        self._flushing = True
        self._now = self._loop.time()
        self._loop.call_soon(self._flush)

    # Sending

    def _flush(self) -> None:
        if not self._thread_id:
            return  # in a forked child that runs on in its parent's loop
        if self._flushing:
            self._flushing = False
            lost = self._loop.time() - self._now
            if lost > BLOCKED:
                self._queue.excuse(lost)  # the loop was blocked: earlier operations are sent only now
        self._unsent.clear()
        queue, claims = self._queue, self._claims
        while (claims or queue.others) and (free := self._max_in_flight - len(self._under_way)) > 0:
            ops = queue.next_batch(free) if queue.others else queue.take_claims(free)
            if not ops:
                break
            self._batches.start(ops, ops[0].at + self._timeout, self._now, self.named)
        if self._deadline.timer is None:
            self._deadline.set()
        if (
            self._drained is not None
            and not self._pending
            and not self._under_way
            and not self._drained.done()
        ):
            self._drained.set_result(None)

    def _drop_unsent(self, op: ClaimOp) -> None:
        """Drop a claim that was not sent from here; its first follower with a waiting caller becomes the leader."""
        self._pending -= 1
        self._forget_claim(op)
        self._note_orphan(op)
        self._promote(op)

    def _promote(self, op: ClaimOp) -> None:
        self._pending -= len(op.followers or ())
        leader = op.promote_follower()
        if leader is not None:
            self._pending += len(leader.followers or ())
            self.leaders[leader.wire] = leader
            self._put(leader)

    # The replies of batches

    def _ended(self, batch: Batch, outcome: Ended) -> None:
        ops = batch.ops
        if isinstance(outcome, BaseException):
            self._batch_failed(ops, outcome)
        elif len(outcome) != len(ops):
            fault = f"the store gave {len(outcome)} replies to {len(ops)} operations"
            self._batch_failed(ops, ConfigError(fault))
        else:
            self._pending -= len(ops)
            if batch.verb is _CLAIM:
                self._deliver_claims(cast("Sequence[ClaimOp]", ops), outcome)
            else:
                self._deliver(ops, outcome)
            if self._troubled:
                self._troubled = False
                self._health.answered()
        if self._claims or self._queue.others or self._drained is not None or self._deadline.timer is None:
            self._flush()
        if batch.task is not None and batch.verb is _CLAIM and not isinstance(outcome, BaseException):
            for claim in resent(cast("Sequence[ClaimOp]", ops), outcome):
                self._orphans.watch(claim)

    def _batch_failed(self, ops: Sequence[Op], error: BaseException) -> None:
        self._pending -= len(ops)
        for op in ops:
            self._fail(op, error, sent=True)
        if isinstance(error, UnavailableError) and not self._closed:
            self._troubled = True
            self._health.failed(error)

    def _deliver(self, ops: Sequence[Op], replies: Sequence[Reply]) -> None:
        for op, reply in zip(ops, replies, strict=True):
            if type(reply) is Redirect:
                self._send_on(op, reply)
                continue
            give(self._loop, op, reply, op.witness)

    def _deliver_claims(self, ops: Sequence[ClaimOp], replies: Sequence[Reply]) -> None:
        leaders = self.leaders
        for op, reply in zip(ops, replies):  # noqa: B905 -- `_end` compares the lengths
            if leaders.get(op.wire) is op:  # else it was sent at the same time as the leader
                del leaders[op.wire]
            if type(reply) is Verdict and op.followers is None and not op.future.done():
                try:
                    op.future.set_result(reply)
                except (Exception, asyncio.CancelledError) as fault:  # noqa: BLE001 -- see `give`
                    give_error(self._loop, op, reported(self._loop, op, fault))
            elif type(reply) is UnavailableError or type(reply) is StoreRefusal:
                self._fail(op, reply, sent=True)  # the store refused this key alone
            elif type(reply) is Redirect:
                self._send_on(op, reply)
            elif reply is _AGAIN:
                self._ask_again(op)
            else:
                self._claim_done(op, reply)

    def _ask_again(self, op: ClaimOp) -> None:
        """Send a claim again, behind others like it: its batch had enough large results, and did not execute it.

        If it has waited for half of the timeout, it is refused, because it would make its batch late.
        """
        until = op.at + self._timeout / 2
        if self._loop.time() >= until:
            self._fail(op, RefusedAlone(self._deadline.missed), sent=False)
            return
        self._pending += 1
        if (op.terms.shared or op.terms.remembered) and not op.named:
            self.leaders.setdefault(op.wire, op)
        self._queue.put_large(op)
        self._deadline.bring_forward(until)

    def _send_on(self, op: Op, redirect: Redirect) -> None:
        """Let an operation leave for another part of the store; it has no effect here."""
        if op.verb is _CLAIM:
            claim = cast(ClaimOp, op)
            self._forget_claim(claim)
            if claim.future.done():  # its caller was cancelled
                self._note_orphan(claim, sent=True)
                self._promote(claim)
                return
            self._pending -= len(claim.followers or ())
        if self.hand_over is None:
            self.refuse(op, UnavailableError("the store sent this key on, but it has no other part"))
        else:
            self.hand_over(self, op, redirect.to)

    def _claim_done(self, op: ClaimOp, reply: Reply) -> None:
        """Deliver the reply of a claim with followers or a witness, without a verdict, or with a cancelled caller."""
        if not op.future.done():
            # See `Op.witness`.
            reply = give(self._loop, op, reply, None if op.followers is None else op.witness)
        elif self._free_orphan(op, reply):
            # The release overtakes the followers, so one of them may become the owner.
            self._promote(op)
        followers, op.followers = op.followers, None
        if not followers:
            return
        self._pending -= len(followers)
        answer = reply_to_follower(reply, op.owner)
        for follower in followers:
            give(self._loop, follower, answer, None)

    def _forget_claim(self, op: ClaimOp) -> None:
        if self.leaders.get(op.wire) is op:
            del self.leaders[op.wire]

    def _fail(self, op: Op, error: BaseException, *, sent: bool) -> None:
        if op.verb is _CLAIM:
            # Before the caller learns of it and may claim again.
            self._note_orphan(cast(ClaimOp, op), sent=sent)
        give_error(self._loop, op, copy_of(error))
        if op.verb is not _CLAIM:
            return
        claim = cast(ClaimOp, op)
        self._forget_claim(claim)
        followers, claim.followers = claim.followers, None
        for follower in followers or ():
            self._pending -= 1
            give_error(self._loop, follower, copy_of(error))

    def _note_orphan(self, op: ClaimOp, *, sent: bool = False) -> None:
        """Report a claim that has no answer and was sent, from here or from the node that sent it on.

        A node that did nothing when it sent the claim on may have executed it before, and the reply was lost.
        """
        if sent or (self.hand_over is not None and op.hops > 0):
            self._orphans.add(op)

    # Operations that have come due: see `deadline.py`

    def _earliest_deadline(self) -> float | None:
        due = [batch.deadline for batch in self._under_way]
        oldest = self._queue.oldest()
        if oldest is not None:
            due.append(oldest + self._timeout)
        large = self._queue.oldest_large()
        if large is not None:
            due.append(large + self._timeout / 2)
        return min(due, default=None)

    def _come_due(self, before: float) -> None:
        """Give up the operations with a deadline up to `before`, in the loop's time."""
        if not self._thread_id:
            return  # in a forked child that runs on in its parent's loop
        for op, kind in self._queue.overdue(before - self._timeout, before - self._timeout / 2):
            self._pending -= 1
            self._fail(op, kind(self._deadline.missed), sent=False)
        self._batches.give_up(before)
        self._flush()

    # The breaker: while it is open every operation is refused at once

    def _breaker_changed(self, reason: str, lasted: float) -> None:
        self._room = 0 if reason or self._closed else self._max_pending
        # When it opens, the operations that wait for a batch are refused.
        for op, _ in self._queue.overdue(inf, inf) if reason else ():
            self._pending -= 1
            self._fail(op, self._health.error(), sent=False)
        if self._on_breaker is not None:
            self._on_breaker(reason, lasted)
