"""A held claim: the owner's knowledge of it, and the store's answers to the operations that the owner sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any, Final, cast

from .. import codec
from ..checks import Seconds, milliseconds
from ..compiled import mypyc_attr
from ..errors import (
    ClaimLostError,
    ResultError,
    ShortfallError,
    UnavailableError,
    UsageError,
    is_answer,
)
from ..kernel.codes import Code
from ..kernel.granted import note_use
from ..kernel.operations import ClaimOp, Op, OwnerOp, ReadOp, ReleaseOp, RenewOp, Reply, SettleOp, Verdict
from ..kernel.owners import owner_text
from ..kernel.records import Stored
from ..kernel.verbs import Effect
from ..model import Outcome
from ..results.completed import completed_json
from ..results.declared import json_for
from .gate import Gate
from .renewal import Renewal

_ACQUIRED: Final = Outcome.ACQUIRED  # naming an enum's member through its class costs 50 ns on Python 3.11
_RECORDED: Final = {"S": "completed", "F": "failed", "R": "released"}
"""The way in which a record in that state was settled."""
_TRIES: Final = 5
"""Sendings of one operation, if its place in the ledger is another one each time."""
LOST: Final = "lost"
ABANDONED: Final = "abandoned"


class Life(StrEnum):
    """The stage of a claim between its answer and its end."""

    LIVE = "live"
    """Its work may run."""
    RECORDING = "recording"
    """A request to record its outcome is under way, or the store has not answered it yet."""
    SETTLED = "settled"
    """It was completed, failed or released."""
    LOST = "lost"
    """Another owner has the key, or the lease has ended."""
    ABANDONED = "abandoned"
    """It was left to its lease, and will not be settled."""


@mypyc_attr(allow_interpreted_subclasses=True)
class HeldClaim:
    """A claim in its owner's view.

    Args:
        gate: the claim's gate.
        op: the claim's operation.
        verdict: its answer.

    Attributes:
        settled: how it was settled or is being settled: "completed", "failed" or "released"; or "lost" or
            "abandoned"; None before.
        settling: whether an outcome was given, or the work noted as done: the end of the block never frees the key.
        lost: whether the lease is known to be lost.
        renewal: the object that keeps the lease alive.
        under_way: whether a request to settle it is under way.
    """

    __slots__ = (
        "_done_elsewhere",
        "_ends",
        "_outage",
        "_outcome_at",
        "_told_lost",
        "_unstorable",
        "_unstorable_ms",
        "_unsure",
        "gate",
        "lost",
        "op",
        "recording",
        "renewal",
        "settled",
        "settling",
        "under_way",
        "verdict",
    )
    # Attributes that most claims never need are not set for all of them.

    _done_elsewhere: bool
    """Set once it is known that another object of the same named owner has completed the claim."""
    _ends: float
    """The end of the lease, in the loop's time; set when it is first read, or when the lease is renewed."""
    _outage: bool
    """Set if the lease is lost: True if the store did not report that, but did not answer until the lease ended."""
    _outcome_at: float
    """When the last outcome was given, before its first sending, in the loop's time; set once one was given."""
    recording: asyncio.Task[None] | None
    """The task that records an outcome after its caller was cancelled; set once a caller was."""
    _told_lost: bool
    """Set once the gate's listeners know that the lease is lost."""
    _unstorable: str
    """The type of the error that keeps the last result from being stored, or ""; set once a result was given."""
    _unstorable_ms: int
    """The milliseconds for which that result would have been remembered."""
    _unsure: tuple[str, ...]
    """The settlements that got no reply: each of these may have taken effect."""

    def __init__(self, gate: Gate, op: ClaimOp, verdict: Verdict) -> None:
        self.gate = gate
        self.op = op
        self.verdict = verdict
        self.settled: str | None = None
        self.lost = False
        self.renewal: Renewal | None = None
        self.settling = False
        self.under_way = False

    @property
    def json_of(self) -> Callable[[Any], bytes]:
        """Makes the JSON of a result, for the type that the caller declared, if any: see `codec.encode`."""
        reader = self.op.reader
        return completed_json if reader is None else partial(json_for, reader)

    @property
    def state(self) -> Life:
        """The claim's stage between its answer and its end."""
        if self.settled == ABANDONED:
            return Life.ABANDONED
        if self.settled == LOST or (self.lost and self.settled is None):
            return Life.LOST
        if self.settled is not None and not self.under_way:
            return Life.SETTLED
        return Life.RECORDING if self.settling or self.under_way else Life.LIVE

    @property
    def is_over(self) -> bool:
        """True if its lease no longer matters: it is settled or abandoned, an outcome was given, or it is done."""
        return self.settling or self.settled is not None or hasattr(self, "_done_elsewhere")

    @property
    def key(self) -> str:
        """The idempotency key; for a token a digest of it."""
        return self.op.key

    @property
    def owner(self) -> str:
        """The claimant's own name."""
        return owner_text(self.op.owner)

    @property
    def fence(self) -> int:
        """The owner's fence; 0 if it is not known."""
        return self.verdict.fence

    @property
    def store_key(self) -> bytes:
        """The key in the store; for a claim with `remember=`, the key of the same claim without a ledger."""
        op = self.op
        if op.terms.remembered:
            return self.gate.claims.wire(op.key)
        return op.wire

    @property
    def held_key(self) -> tuple[bytes, bytes]:
        """The key in the store and the owner field: enough to settle without the claim."""
        return self.op.wire, self.op.owner

    @property
    def lost_in_outage(self) -> bool:
        """True if the lease is lost, and the store did not answer until it ended: no other owner is known."""
        return self.lost and getattr(self, "_outage", False)

    @property
    def lease_left(self) -> float:
        """Seconds until the lease ends, by the clock of the loop that runs."""
        now = asyncio.get_running_loop().time()
        if not hasattr(self, "_ends"):
            asked = getattr(self.op, "at", now)  # if the policy answered, nothing was sent
            self._ends = asked + self.verdict.left_ms / 1000
        return self._ends - now

    @property
    def renewed_until(self) -> float:
        """The end of the lease in the loop's time, if it was renewed; else 0.0, or the end of the first one."""
        return getattr(self, "_ends", 0.0)

    def lease_began(self, now: float, lease: float) -> float:
        """Return when the lease of these seconds began, in the loop's time, for a renewal that begins now.

        Counted from the sending, because the store's clock may have run since. A policy's lease is counted from now;
        a claim of the store's that a policy gave back to its owner has less of it left.
        """
        if hasattr(self, "_ends"):  # it was renewed before
            began = min(self._ends - lease, now)
        else:
            given = now + min(self.verdict.left_ms / 1000 - lease, 0.0)
            began = given if self.verdict.degraded else getattr(self.op, "at", now)
        # If it has ended, only the store knows whether another owner has the key: it is asked at once.
        return began if began + lease > now else now - lease / 3 * 2

    def warn(self, kind: str, text: str, *args: object) -> None:
        """Log a line about this claim; its key is the first argument. See `Common.tell`."""
        self.gate.connections.common.tell(kind, text, self.key, *args)

    # The lease

    async def renew(self, lease: Seconds | None = None) -> None:
        """Start the lease anew from now."""
        terms = self.op.terms
        lease_ms = terms.lease_ms if lease is None else milliseconds(lease, "lease")
        keep_ms = terms.ttl_ms + lease_ms
        ends = asyncio.get_running_loop().time() + lease_ms / 1000
        shortfall = None
        try:
            await self.extend(RenewOp(self.op.wire, self.op.owner, self.fence, lease_ms, keep_ms))
        except ShortfallError as error:
            shortfall = error  # it was done
        self._ends = ends
        if lease is not None and self.renewal is not None:
            # Its next look may come too late for a shorter lease.
            now = asyncio.get_running_loop().time()
            self.renewal.begin_anew(self.lease_began(now, terms.lease_ms / 1000))
        if shortfall is not None:
            raise shortfall

    async def extend(self, op: OwnerOp) -> None:
        """Send an operation after which the claim is still held; errors are those of `Claim.renew`."""
        self._check_live()
        try:
            await self._act(op)
        except ClaimLostError:
            if not self.settling and self.settled is None:  # if it was settled meanwhile, it is not lost
                self._tell_lost()
            raise

    async def _end_lease(self, after: float) -> None:
        """Let the lease end in `after` seconds, so that the key is free then."""
        free_at = asyncio.get_running_loop().time() + after
        try:
            await self.renew(after)
        except ShortfallError:
            pass  # it was done
        except UnavailableError as error:
            self._free_at(error, free_at)
        except (Exception, asyncio.CancelledError) as error:
            if not is_answer(error):
                self.gate.connection.orphans.add(self.op, self.fence, free_at)
            raise

    def _free_at(self, error: UnavailableError, free_at: float) -> None:
        """Release in the policy, if it answers in the store's place; else arrange that the key is free in time.

        Args:
            error: the reason why the store did not answer.
            free_at: when the key must be free, in the loop's time.
        """
        try:
            self.gate.counted(ReleaseOp(self.op.wire, self.op.owner, self.fence), error, self.gate.now)
        except Exception as fault:
            self.gate.connection.orphans.add(self.op, self.fence, free_at)
            if not isinstance(fault, UnavailableError):  # such as one of the user's policy
                raise

    def note_lost(self, *, outage: bool) -> None:
        """Note that the lease is lost, without a report and without stopping the work.

        `outage`: the store did not report that, but did not answer until the lease ended.
        """
        self.lost, self._outage = True, outage

    def _tell_lost(self) -> None:
        """Report once that the lease is lost: a renewal or a settling may both find it."""
        if not getattr(self, "_told_lost", False):
            self._told_lost = True
            if hasattr(self.op, "resent"):  # a late copy would take the key once its present owner is gone
                self.gate.connection.orphans.watch(self.op)
            self.gate.lease_lost(self.key, self.owner, self.fence, outage=self.lost_in_outage)

    def lost_error(self) -> ClaimLostError:
        """Return the error of a lost lease."""
        if self.lost_in_outage:
            return ClaimLostError(
                f"the lease of {self.key!r} ended while the store did not answer (fence {self.fence})",
                outage=True,
            )
        return ClaimLostError(
            f"{self.key!r} is no longer held by this owner (fence {self.fence}): its lease ended, "
            "it was settled or forgotten elsewhere, or the store lost its data; nothing was changed"
        )

    # Checks before its end

    def _check_live(self, how: str = "") -> None:
        """Raise an error if the claim cannot be settled in the way `how`, or be renewed."""
        if self.verdict.outcome is not _ACQUIRED:
            raise UsageError(f"this claim is {self.verdict.outcome}, not acquired: only its owner settles it")
        if self.settled == LOST:
            raise self.lost_error()
        if self.settled is not None and not self._may_say_anew(how):
            raise UsageError(f"this claim was {self.settled} already; settle it once")

    def _may_say_anew(self, how: str) -> bool:
        """True if the caller was cancelled while it settled the claim: then it may repeat a recorded outcome."""
        if self.settled == "released":
            return how == "released" and self._may_be(how)
        recording = getattr(self, "recording", None)
        return bool(how) and recording is not None and (not recording.done() or how == self.settled)

    def _may_be(self, how: str) -> bool:
        """True if it was settled in this way, and the store did not reply."""
        return how in getattr(self, "_unsure", ())

    def _note_unsure(self, how: str) -> None:
        if not self._may_be(how):
            self._unsure = (*getattr(self, "_unsure", ()), how)

    def _outcome_op(
        self,
        how: str,
        value: Any,
        ttl: Seconds | None,
        *,
        done_ms: int | None = None,
        json_of: Callable[[Any], bytes] | None = None,
    ) -> SettleOp:
        """Return the operation that records an outcome.

        Args:
            how: "completed" or "failed".
            value: the result, or the error.
            ttl: seconds for which it is remembered, if the caller chose them.
            done_ms: for a failure whose work was done, or may have been: milliseconds for which it is remembered.
            json_of: see `codec.encode`.
        """
        self._check_live(how)
        self.settling, self._unstorable = True, ""
        self._outcome_at = asyncio.get_running_loop().time()
        succeeded = how == "completed"
        settings = self.gate.settings
        if ttl is not None:
            keep_ms = milliseconds(ttl, "ttl")
        elif done_ms is not None:
            keep_ms = done_ms
        elif not succeeded:
            keep_ms = self.gate.keep_ms(succeeded=False)
        else:
            keep_ms = self.op.record_ms
        try:
            if succeeded:
                payload = codec.encode(settings.codec, value, settings.max_result, json_of)
            else:
                payload = codec.encode_error(settings.codec, value, settings.max_result)
        except BaseException as error:
            self._note_unstorable(error, keep_ms, succeeded=succeeded)
            raise
        op, fence = self.op, self.verdict.fence
        if succeeded:
            return op.completion(fence, keep_ms, payload)
        return SettleOp(op.wire, op.owner, fence, succeeded=False, keep_ms=keep_ms, payload=payload)

    def note_done(self) -> None:
        """Note that the work is done: if an error comes before its outcome is given, the key is not freed."""
        self.settling, self._unstorable, self._unstorable_ms = True, ResultError.__name__, self.op.success_ms

    def _note_unstorable(self, error: BaseException, keep_ms: int, *, succeeded: bool) -> None:
        self._unstorable = type(error).__name__  # not the error: its traceback refers to this claim
        in_ledger = succeeded and self.op.terms.remembered
        self._unstorable_ms = max(keep_ms, self.op.success_ms) if in_ledger else keep_ms

    # An operation of the owner, and the meaning of its reply

    async def _act(self, op: Op) -> None:
        gate, settles = self.gate, isinstance(op, SettleOp)
        if self.verdict.degraded and isinstance(op, SettleOp) and op.also is not None:
            # The store may have come back without its data, and its ledger may have other digests in the same bucket.
            if await gate.find_again(self.op, None, moves=True):
                op = self.op.completion(self.fence, op.keep_ms, op.payload)
            op.also = self.op.unless
        for _ in range(_TRIES):
            since = gate.now
            try:  # like `Gate.run`, which would cost another coroutine
                answer = await gate.begin(op, degraded=self.verdict.degraded, granted=True)
            except UnavailableError as error:
                code = gate.counted(op, error, since, is_tried_again=settles)
            else:
                code = gate.counted(op, answer, since, is_tried_again=settles)
            if code == Code.OK:
                if self.op.terms.redeems and isinstance(op, SettleOp):
                    note_use(op)
                return
            following = None if self.op.unless is None else await self._at_present_place(op, code)
            if following is None:
                break
            op = following
        else:
            raise UnavailableError(f"the form of the ledger of {self.key!r} changes all the time; try again")
        if code == Code.LOST and isinstance(op, ReleaseOp | SettleOp) and self._may_be_otherwise(op):
            recorded = await self._recorded()
            if recorded:
                self.settled = recorded
                raise UsageError(f"this claim was {recorded} already; settle it once")
        # A success keeps others out; a key that was freed, or a failure, which may be tried again, does not.
        shared = code == Code.LOST and op.verb.row.effect is Effect.EXTENDS and self.op.named
        if shared and await self._recorded() == "completed":
            self._done_elsewhere = True
            raise UsageError("this claim was completed already, by another call of the same owner")
        unclear = code == Code.LOST and isinstance(op, ReleaseOp | SettleOp) and op.resent
        if unclear and isinstance(op, SettleOp) and self.op.named:
            unclear = not await self._recorded()  # else another call of this owner has settled it
        if unclear:
            if self.lease_left > 0:
                # Within its lease no other owner takes a key that was not freed: the first sending did it. A settled
                # record has expired since, or the store has lost it.
                now = asyncio.get_running_loop().time()
                if isinstance(op, SettleOp) and now < self._outcome_at + op.keep_ms / 1000:
                    raise self._unrecorded()
                return
            self.lost = self._outage = True
            raise ClaimLostError(
                f"whether {self.key!r} was settled is not known: the reply was lost, and by now its lease has "
                f"ended (fence {self.fence})",
                outage=True,
            )
        self.lost, self._outage = True, False
        raise self.lost_error()

    async def _recorded(self) -> str:
        """Return how this claim is settled in the store; "" if its record is another owner's, or does not exist."""
        op, gate = ReadOp(self.op.wire), self.gate
        try:
            answer = await gate.begin(op, degraded=self.verdict.degraded, granted=True)
        except UnavailableError as error:
            found = gate.verdict(op, error)
        else:
            found = gate.verdict(op, answer)
        if not isinstance(found, Stored) or found.owner != self.op.owner or found.fence != self.fence:
            return ""
        return _RECORDED.get(found.state, "")

    def _may_be_otherwise(self, op: ReleaseOp | SettleOp) -> bool:
        """True if it was settled in another way before, and the store did not reply."""
        how = "released" if isinstance(op, ReleaseOp) else "completed" if op.succeeded else "failed"
        return any(each != how for each in getattr(self, "_unsure", ()))

    async def _at_present_place(self, op: Op, code: Reply) -> Op | None:
        """Return the operation for the id's place in the ledger's present form; None if its answer stands.

        A place may be stale or full. And the policy may have moved the claim, which is lost at the former place.
        """
        degraded, notes = self.verdict.degraded, isinstance(op, SettleOp) and op.also is not None
        if code == Code.LOST:
            if not degraded or not await self.gate.find_again(self.op, Code.STALE, moves=True):
                return None
        elif notes:
            await self.gate.find_again(self.op, cast(Code, code), moves=degraded)
        else:
            return None
        if isinstance(op, SettleOp) and op.also is not None:
            return self.op.completion(self.fence, op.keep_ms, op.payload)
        op.wire = self.op.wire
        return op

    def _unrecorded(self) -> UnavailableError:
        self._tell_lost()
        error = UnavailableError(
            f"{self.key!r} is not recorded: the reply was lost, and the store answers again without the record "
            f"(fence {self.fence}); it has lost data, or the key was forgotten"
        )
        error.unrecorded = True
        return error
