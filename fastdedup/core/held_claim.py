"""A held claim: what its owner knows of it, and how the store answers each operation that the owner sends."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Any, Final, cast

from .. import codec
from ..checks import Seconds, milliseconds
from ..compiled import mypyc_attr
from ..errors import (
    ClaimLostError,
    DedupError,
    ResultError,
    ResultTooLargeError,
    ShortfallError,
    UnavailableError,
    UsageError,
)
from ..kernel.codes import Code
from ..kernel.granted import note_use
from ..kernel.operations import ClaimOp, Op, ReadOp, ReleaseOp, RenewOp, SettleOp, Verdict
from ..kernel.owners import owner_text
from ..kernel.records import Stored
from ..kernel.verbs import Verb
from ..model import Outcome
from .gate import Gate

_ACQUIRED: Final = Outcome.ACQUIRED  # naming an enum's member through its class costs 50 ns on Python 3.11
_RECORDED: Final = {"S": "completed", "F": "failed", "R": "released"}
"""How a record in that state was settled."""
LOST: Final = "lost"
ABANDONED: Final = "abandoned"


class Life(StrEnum):
    """Where a claim is between its answer and its end."""

    LIVE = "live"
    """Its work may run."""
    RECORDING = "recording"
    """The store is being asked to record how it ends, or has not answered that yet."""
    SETTLED = "settled"
    """It was completed, failed or released."""
    LOST = "lost"
    """Another owner has the key, or the lease has ended."""
    ABANDONED = "abandoned"
    """Handed over to its lease: it is not settled any more."""


@mypyc_attr(allow_interpreted_subclasses=True)
class HeldClaim:
    """A claim as its owner sees it.

    Args:
        gate: of the claim.
        op: the claim's operation.
        verdict: its answer.

    Attributes:
        settled: how it was settled or is being settled: "completed", "failed" or "released"; or "lost", "abandoned";
            None while it is none of these.
        settling: whether an outcome was given: the effect has happened, so leaving never frees the key.
        lost: whether the lease is known to be lost.
        under_way: whether the store is being asked to settle it.
    """

    __slots__ = (
        "_ends",
        "_outage",
        "_told_lost",
        "_unstorable",
        "_unstorable_ms",
        "_unsure",
        "gate",
        "lost",
        "op",
        "recording",
        "settled",
        "settling",
        "under_way",
        "verdict",
    )
    # What most claims never need is not set for all of them.

    _ends: float
    """When the lease ends, in the loop's time, once that was asked for, or the lease was renewed."""
    _outage: bool
    """Set if the lease is lost: True if the store has not said so, but did not answer until it ended."""
    recording: asyncio.Task[None] | None
    """Goes on recording an outcome whose caller was cancelled; set once one was."""
    _told_lost: bool
    """Set once the gate's listeners know that the lease is lost."""
    _unstorable: str
    """The type of the error by which the last result cannot be stored, "" if it can; set once one was given."""
    _unstorable_ms: int
    """For how many milliseconds that result would have been remembered."""
    _unsure: tuple[str, ...]
    """How it was settled without a reply: each of these may have taken effect."""

    def __init__(self, gate: Gate, op: ClaimOp, verdict: Verdict) -> None:
        self.gate = gate
        self.op = op
        self.verdict = verdict
        self.settled: str | None = None
        self.lost = False
        self.settling = False
        self.under_way = False

    @property
    def state(self) -> Life:
        """Where the claim is between its answer and its end."""
        if self.settled == ABANDONED:
            return Life.ABANDONED
        if self.settled == LOST or (self.lost and self.settled is None):
            return Life.LOST
        if self.settled is not None and not self.under_way:
            return Life.SETTLED
        return Life.RECORDING if self.settling or self.under_way else Life.LIVE

    @property
    def is_over(self) -> bool:
        """True if its lease matters no more: it is settled or abandoned, or an outcome was given."""
        return self.settling or self.settled is not None

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
        """The key in the store, which for a claim with `remember=` is that of the same claim without a ledger."""
        op = self.op
        if op.terms.remembered:
            return self.gate.claims.wire(op.key)
        return op.wire

    @property
    def held_key(self) -> tuple[bytes, bytes]:
        """The key in the store and the owner field: what settling takes, if no claim is kept."""
        return self.op.wire, self.op.owner

    @property
    def newly_acquired(self) -> bool:
        """True if this call acquired the key, False if its owner held it before."""
        return self.verdict.fresh

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

    def warn(self, kind: str, text: str, *args: object) -> None:
        """Log a line of what became of this claim; its key is the first argument. See `Connection.tell`."""
        self.gate.connections.common.tell(kind, text, self.key, *args)

    # The lease

    async def renew(self, lease: Seconds | None = None) -> None:
        """Start the lease anew from now."""
        self._check_live()
        terms = self.op.terms
        lease_ms = terms.lease_ms if lease is None else milliseconds(lease, "lease")
        keep_ms = terms.keep_ms - terms.lease_ms + lease_ms
        ends = asyncio.get_running_loop().time() + lease_ms / 1000
        try:
            await self._act(RenewOp(self.op.wire, self.op.owner, self.fence, lease_ms, keep_ms))
        except ClaimLostError:
            if not self.settling and self.settled is None:  # settled meanwhile, it is not lost
                self._tell_lost()
            raise
        self._ends = ends

    async def _end_lease(self, after: float) -> None:
        """Let the lease end in so many seconds, so that the key is free then."""
        free_at = asyncio.get_running_loop().time() + after
        try:
            await self.renew(after)
        except ShortfallError:
            pass  # it was done
        except UnavailableError as error:
            self._free_at(error, free_at)
        except asyncio.CancelledError:
            self.gate.connection.orphans.add(self.op, self.fence, free_at)
            raise

    def _free_at(self, error: UnavailableError, free_at: float) -> None:
        """Release by the policy, if that answers in the store's place; else see that the key is free in time.

        Args:
            error: why the store did not answer.
            free_at: when the key shall be free, in the loop's time.
        """
        try:
            self.gate.counted(ReleaseOp(self.op.wire, self.op.owner, self.fence), error, self.gate.now)
        except UnavailableError:
            self.gate.connection.orphans.add(self.op, self.fence, free_at)

    def note_lost(self, *, outage: bool) -> None:
        """Take note that the lease is lost, without telling it or stopping the work.

        `outage`: the store has not said so, but did not answer until the lease ended.
        """
        self.lost, self._outage = True, outage

    def _tell_lost(self) -> None:
        """Report once that the lease is lost: a renewal or a settling may both find it."""
        if not getattr(self, "_told_lost", False):
            self._told_lost = True
            self.gate.lease_lost(self.key, self.owner, self.fence, outage=self.lost_in_outage)

    def lost_error(self) -> ClaimLostError:
        """Return the error that says that the lease is lost."""
        if self.lost_in_outage:
            return ClaimLostError(
                f"the lease of {self.key!r} ended while the store did not answer (fence {self.fence})",
                outage=True,
            )
        return ClaimLostError(
            f"{self.key!r} is no longer held by this owner (fence {self.fence}): its lease ended, "
            "or it was settled or forgotten elsewhere; nothing was changed"
        )

    # What may be said of its end

    def _check_live(self, how: str = "") -> None:
        """Raise an error if the claim cannot be settled as `how` says, or be renewed."""
        if self.verdict.outcome is not _ACQUIRED:
            raise UsageError(f"this claim is {self.verdict.outcome}, not acquired: only its owner settles it")
        if self.settled == LOST:
            raise self.lost_error()
        if self.settled is not None and not self._may_say_anew(how):
            raise UsageError(f"this claim was {self.settled} already; settle it once")

    def _may_say_anew(self, how: str) -> bool:
        """True if the caller was cancelled while it settled the claim: what is recorded by now can be repeated."""
        if self.settled == "released":
            return how == "released" and self._may_be(how)
        recording = getattr(self, "recording", None)
        return bool(how) and recording is not None and (not recording.done() or how == self.settled)

    def _may_be(self, how: str) -> bool:
        """True if it was settled so, and the store did not reply."""
        return how in getattr(self, "_unsure", ())

    def _note_unsure(self, how: str) -> None:
        if not self._may_be(how):
            self._unsure = (*getattr(self, "_unsure", ()), how)

    def _outcome_op(
        self, how: str, value: Any, ttl: Seconds | None, *, done_ms: int | None = None
    ) -> SettleOp:
        """Return the operation that records an outcome.

        `done_ms`: for a failure whose work was done, or may have been: milliseconds for which it is remembered.
        """
        self._check_live(how)
        self.settling = True
        succeeded = how == "completed"
        settings = self.gate.settings
        if ttl is not None:
            keep_ms = milliseconds(ttl, "ttl")
        elif done_ms is not None:
            keep_ms = done_ms
        elif not succeeded:
            keep_ms = round(settings.failure_ttl * 1000)
        else:
            keep_ms = self.op.record_ms
        self._unstorable = ""
        try:
            if succeeded:
                payload = codec.encode(settings.codec, value, settings.max_result)
            else:
                payload = codec.encode_error(settings.codec, value, settings.max_result)
        except (ResultError, ResultTooLargeError) as error:
            self._note_unstorable(error, keep_ms, succeeded=succeeded)
            raise
        op, fence = self.op, self.verdict.fence
        if succeeded:
            return op.completion(fence, keep_ms, payload)
        return SettleOp(op.wire, op.owner, fence, succeeded=False, keep_ms=keep_ms, payload=payload)

    def _note_unstorable(self, error: DedupError, keep_ms: int, *, succeeded: bool) -> None:
        self._unstorable = type(error).__name__  # not the error, whose traceback leads back to this claim
        in_ledger = succeeded and self.op.terms.remembered
        self._unstorable_ms = max(keep_ms, self.op.success_ms) if in_ledger else keep_ms

    # An operation of the owner, and what its reply means

    async def _act(self, op: Op) -> None:
        if self.verdict.degraded and isinstance(op, SettleOp) and op.verb is Verb.SETTLE_REMEMBERED:
            # The store may have come back without its data, and its ledger may have other digests in the same bucket.
            if await self.op.find_again(None, moves=True):
                op = self.op.completion(self.fence, op.keep_ms, op.payload)
            op.rely_on(self.op)
        gate = self.gate
        since, settles = gate.now, isinstance(op, SettleOp)
        try:  # as in `Gate.run`, which would be a coroutine more
            answer = await gate.begin(op, degraded=self.verdict.degraded, granted=True)
        except UnavailableError as error:
            code = gate.counted(op, error, since, is_tried_again=settles)
        else:
            code = gate.counted(op, answer, since, is_tried_again=settles)
        if code == Code.OK:
            if self.op.terms.redeems and isinstance(op, SettleOp):
                note_use(op)
            return None
        if isinstance(op, SettleOp) and op.verb is Verb.SETTLE_REMEMBERED and code != Code.LOST:
            await self.op.find_again(cast(Code, code), moves=self.verdict.degraded)
            return await self._act(self.op.completion(self.fence, op.keep_ms, op.payload))
        if code == Code.LOST and self.verdict.degraded and self.op.terms.remembered:
            elsewhere = await self._elsewhere(op)
            if elsewhere is not None:
                return await self._act(elsewhere)
        if code == Code.LOST and isinstance(op, ReleaseOp | SettleOp) and self._may_be_otherwise(op):
            recorded = await self._recorded()
            if recorded:
                self.settled = recorded
                raise UsageError(f"this claim was {recorded} already; settle it once")
        if code == Code.LOST and isinstance(op, ReleaseOp | SettleOp) and op.resent:
            if self.lease_left > 0:
                # Within its lease no other owner takes a key that was not freed: the first sending did it. A settled
                # record has expired since, or the store has lost it.
                if isinstance(op, SettleOp) and op.keep_ms >= self.op.terms.lease_ms:
                    raise self._unrecorded()
                return None
            self.lost = self._outage = True
            raise ClaimLostError(
                f"whether {self.key!r} was settled is not known: the reply was lost, and by now its lease has "
                f"ended (fence {self.fence})",
                outage=True,
            )
        self.lost, self._outage = True, False
        raise self.lost_error()

    async def _recorded(self) -> str:
        """Return how the store has this claim settled; "" if its record is another owner's, or there is none."""
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
        """True if it was settled before in another way, and the store did not reply."""
        how = "released" if isinstance(op, ReleaseOp) else "completed" if op.succeeded else "failed"
        return any(each != how for each in getattr(self, "_unsure", ()))

    async def _elsewhere(self, op: Op) -> Op | None:
        """Return the operation for the place to which the policy has taken the claim; None if that is the same."""
        if not await self.op.find_again(Code.STALE, moves=True):
            return None
        if isinstance(op, SettleOp) and op.verb is Verb.SETTLE_REMEMBERED:
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
