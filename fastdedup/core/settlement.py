"""The life of a claim: from the answer that acquired its key to the record of how its work ended.

Integrations steer a claim by its `Settlement`, which `claim.settlement` gives: it records outcomes, frees the key,
guards the work against a lost lease, and goes on by itself if its caller is cancelled.

    LIVE → RECORDING → SETTLED     an outcome is being recorded, then it is recorded, or the key is free
       ↘            ↘ LOST         another owner has the key, or its lease has ended
         ABANDONED                 handed over: its lease ends by itself
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from time import monotonic
from typing import Any, Final, Protocol

from .. import codec
from ..checks import Seconds, check_seconds, milliseconds
from ..compiled import mypyc_attr
from ..errors import (
    ClaimLostError,
    DedupError,
    ResultError,
    ResultTooLargeError,
    ShortfallError,
    UnavailableError,
)
from ..kernel.operations import ClaimOp, ReleaseOp, SettleOp, Verdict
from ..ledger.operations import ECHO_MS
from ..model import Outcome
from .connection import LONGEST_PAUSE
from .gate import Gate
from .held_claim import ABANDONED, LOST, HeldClaim
from .tracing import Tracing

_ACQUIRED: Final = Outcome.ACQUIRED  # naming an enum's member through its class costs 50 ns on Python 3.11
_FIRST_PAUSE: Final = 0.02
"""Seconds between two tries to settle while the store is unavailable, at first."""
_SHORTEST_LEASE: Final = 0.001
"""Seconds: stores count milliseconds."""


class Body(Protocol):
    """The work under a claim, as far as a lost lease concerns it: an asyncio.Task is one."""

    def cancel(self) -> bool:
        """Stop it. Return False if it cannot be stopped: then it goes on, and its end settles the claim."""

    def uncancel(self) -> int:
        """Take that back; returns how many others have cancelled it."""


class Stoppable(Protocol):
    """What keeps a lease alive, as far as a claim concerns it."""

    def stop(self) -> None:
        """Renew no more."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Settlement(HeldClaim):
    """The life of one claim. Methods that settle raise what `Claim.complete` raises.

    The arguments are those of `HeldClaim`.

    Attributes:
        fault: an error that the work has raised and its caller has caught, for the span.
        renewal: what keeps the lease alive.
        stopped_body: whether the guarded work was stopped, as the lease was lost.
    """

    __slots__ = (
        "_body",
        "_unstorable",
        "_unstorable_ms",
        "fault",
        "goes_on",
        "renewal",
        "stopped_body",
        "trace",
    )
    # What most claims never need is not set for all of them: `guard` adds whose body it guards.

    goes_on: bool
    """True if the caller goes on by itself when it gives up recording, and so counts once what comes of it."""
    trace: object
    """The context of the claim's span; set by what traces."""
    _unstorable: str
    """The type of the error by which the last result cannot be stored, "" if it can; set once one was given."""
    _unstorable_ms: int
    """For how many milliseconds that result would have been remembered."""

    def __init__(self, gate: Gate, op: ClaimOp, verdict: Verdict) -> None:
        super().__init__(gate, op, verdict)
        self.renewal: Stoppable | None = None
        self.fault: BaseException | None = None

    # What ends it. Descriptions and errors as of the methods of `Claim`

    async def complete(
        self, result: Any = None, ttl: Seconds | None = None, *, within: Seconds | None = None
    ) -> None:
        """Record success."""
        until = settle_until(within)
        await self._finish("completed", self._outcome_op("completed", result, ttl), until)

    async def fail(
        self, error: Any = None, ttl: Seconds | None = None, *, within: Seconds | None = None
    ) -> None:
        """Record a failure for good."""
        until = settle_until(within)
        await self._finish("failed", self._outcome_op("failed", error, ttl), until)

    async def release(self) -> None:
        """Free the key: nothing happened, the next claimant may try."""
        self._check_live("released")
        op = ReleaseOp(self.op.wire, self.op.owner, self.verdict.fence)
        op.unsure = self._may_be("released")
        await self._finish("released", op)
        self._unsure = ()
        if hasattr(self.op, "unsure"):
            self.gate.connection.undo.watch(self.op)

    def abandon(self) -> None:
        """Settle it no more: its lease ends by itself, and leaving `async with` records nothing."""
        if self.settled is None:
            self.settled = ABANDONED
        if self.renewal is not None:
            self.renewal.stop()

    def renew_no_more(self) -> None:
        """Let the lease end as it is, unless it is renewed by hand."""
        if self.renewal is not None:
            self.renewal.stop()
            self.renewal = None

    # Settling

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
            # A claim's own ttl is what its terms keep beyond the lease.
            terms = self.op.terms
            keep_ms = ECHO_MS if terms.remembered else terms.keep_ms - terms.lease_ms
        self._unstorable = ""
        try:
            if succeeded:
                payload = codec.encode(settings.codec, value, settings.max_result)
            else:
                payload = codec.encode_error(settings.codec, value, settings.max_result)
        except (ResultError, ResultTooLargeError) as error:
            self._note_unstorable(error, keep_ms, succeeded=succeeded)
            raise
        if succeeded and self.op.terms.remembered:
            return self._remembered_op(keep_ms, payload)
        return SettleOp(
            self.op.wire,
            self.op.owner,
            self.verdict.fence,
            succeeded=succeeded,
            keep_ms=keep_ms,
            payload=payload,
        )

    def _note_unstorable(self, error: DedupError, keep_ms: int, *, succeeded: bool) -> None:
        self._unstorable = type(error).__name__  # not the error, whose traceback leads back to this claim
        in_ledger = succeeded and self.op.terms.remembered
        self._unstorable_ms = max(keep_ms, self._success_ms()) if in_ledger else keep_ms

    async def _finish(
        self,
        how: str,
        op: SettleOp | ReleaseOp,
        until: float | None = None,
        *,
        traces: bool = True,
        alone: bool = False,
    ) -> None:
        """Settle. An outcome is sent again and again until the lease ends, or `until`; see `settle_until`.

        The lease ends by the claim's own clock, which started before the store's. `traces`: make a span. `alone`: its
        caller was cancelled.
        """
        tracing = self.gate.observers.tracing
        if tracing is not None and traces and (span := tracing.settling(self, how)) is not None:
            return await traced(tracing, span, self._finish(how, op, until, traces=False))
        recording = getattr(self, "recording", None)
        if recording is not None and not alone:  # its caller was cancelled, and says anew how it ends
            recording.cancel()
            self.recording = None
        self.settled, self.under_way = how, True
        pause, began = _FIRST_PAUSE, self.gate.now
        try:
            while True:
                try:
                    return await self._act(op)
                except UnavailableError as error:
                    if not isinstance(op, SettleOp) or error.unrecorded:
                        raise
                    left = self._time_to_settle(until)
                    if left <= 0:
                        if not getattr(self, "goes_on", False):
                            self.gate.refused(op, error, began)
                        error.unrecorded = not isinstance(error, ShortfallError)
                        raise
                await asyncio.sleep(min(left, pause * (0.5 + 0.5 * random.random())))
                pause = min(2 * pause, LONGEST_PAUSE)
        except ClaimLostError:
            self.settled = LOST
            self._tell_lost()
            raise
        except asyncio.CancelledError:
            if not alone:  # it goes on by itself
                self._note_unsure(how)
                if isinstance(op, SettleOp):
                    self.settled = None
                    self.recording = self.gate.connection.keep(self._record_alone(how, op, until))
                else:
                    self.gate.connection.free_soon(self.op, self.fence, asked=True)
            raise
        except BaseException as error:
            if isinstance(error, UnavailableError):
                self._note_unsure(how)
            if isinstance(error, ResultTooLargeError) and isinstance(
                op, SettleOp
            ):  # a sidecar's limit is lower
                self._note_unstorable(error, op.keep_ms, succeeded=op.succeeded)
            if self.settled == how:
                self.settled = None
            raise
        finally:
            self.under_way = False
            if self.settled is not None and self.renewal is not None:
                self.renewal.stop()

    async def _record_alone(self, how: str, op: SettleOp, until: float | None) -> None:
        """Go on recording an outcome whose caller was cancelled; log it if that fails."""
        try:
            await self._finish(how, op, until, traces=False, alone=True)
        except DedupError as error:
            self.warn_of_loss(error)
            raise
        except asyncio.CancelledError:
            if self.recording is asyncio.current_task():  # not replaced by another outcome
                self.warn_of_loss("its event loop has ended")
            raise

    def warn_of_loss(self, why: object) -> None:
        """Log that an outcome was not recorded whose caller was cancelled."""
        text = "%s: its caller was cancelled, and its result could not be recorded: %s"
        self.warn("results that were not recorded", text, why)

    def _time_to_settle(self, until: float | None) -> float:
        left = self.lease_left
        return left if until is None else min(left, until - monotonic())

    # The `async with` body

    def guard(self, body: Body | None) -> None:
        """Remember the work that is to be cancelled if the lease is lost; None for work that nothing can stop."""
        self._body: Body | None = body
        self.stopped_body = False

    def lose(self, *, outage: bool) -> None:
        """Stop the body before another owner starts: the lease could not be renewed. Argument as for `note_lost`."""
        self.note_lost(outage=outage)
        self._tell_lost()
        body = getattr(self, "_body", None)
        if body is not None:
            self.stopped_body = body.cancel()

    def unguard(self) -> None:
        """The body is over: cancel no task, and renew no more."""
        self._body = None
        if self.renewal is not None:
            self.renewal.stop()

    async def leave(self, error: BaseException | None, *, release: bool = False) -> None:
        """Settle on the way out of `async with`, shielded from cancellation; see `Dedup.claim`."""
        body = self._body
        self.unguard()
        if self.verdict.outcome is not _ACQUIRED:
            return
        if self.lost_in_outage and not self.settling and (release or error is not None):
            # A renewal that still lies in a socket would hold the key for an owner that has stopped.
            self.gate.connection.free_soon(self.op, self.fence)
        if self.stopped_body and body is not None:
            outside = body.uncancel() > 0  # cancelled from outside as well: that goes first
            if not outside and (error is None or isinstance(error, asyncio.CancelledError)):
                raise ClaimLostError(
                    f"the lease of {self.key!r} was lost while its body ran", outage=self.lost_in_outage
                ) from None
            return
        recording = getattr(self, "recording", None)
        if error is None and recording is not None:
            # Not by a shield: a caller that settles it anew meanwhile cancels the recording, and not this task.
            await asyncio.wait([recording])
            if not recording.cancelled():
                recording.result()
            return
        if self.settled is not None:
            return
        if error is not None and self.settling:
            if self._unstorable:  # whatever the body has made of that error
                with contextlib.suppress(DedupError):
                    await asyncio.shield(self.gate.connection.keep(self.record_unstorable()))
            return
        if self.lost:
            if error is None and self.lost_in_outage and not release:
                # The body has ended all the same, in a thread. The store knows whether another owner has the key.
                await self.complete()
            elif error is None:
                raise self.lost_error()
            return
        if error is None and not release and not self._may_be("released"):
            if self.settling and self._unstorable:  # None is not what the body has returned
                await self.record_unstorable()
                return
            await self.complete()  # if this task is cancelled, recording goes on by itself
            return
        # Not tied to this task: cancelling it leaves the settling to finish by itself.
        settling = self.gate.connection.keep(self.free())
        if error is None:
            await asyncio.shield(settling)
            return
        # The body's own error matters more than that of freeing the key.
        with contextlib.suppress(DedupError):
            await asyncio.shield(settling)

    async def free(self, *, after: float = 0.0) -> None:
        """Release, if no caller is there to try again: as soon as the store answers, if it does not now.

        The claim of an owner that the caller named ends with its lease: the same name gets it back.

        Args:
            after: seconds in which the key shall be free, by a lease that ends then: copies of a message that are
                here already would else spend all its attempts without a delay. If the store does not answer, it is
                not asked to release the key now, as that could take effect too soon.

        Raises:
            ConfigError: `after` is no time.
            DedupError: what `Claim.release` raises.
        """
        if after != 0.0 and check_seconds(after, "after", least=0.0) >= _SHORTEST_LEASE:
            await self._end_lease(after)
            return
        try:
            await self.release()
        except UnavailableError:
            self.gate.connection.undo.add(self.op, self.fence)
            raise

    async def _end_lease(self, after: float) -> None:
        self.renew_no_more()
        free_at = asyncio.get_running_loop().time() + after
        try:
            await self.renew(after)
        except ShortfallError:
            pass  # it was done
        except UnavailableError as error:
            self._free_at(error, free_at)

    def _free_at(self, error: UnavailableError, free_at: float) -> None:
        """Release by the policy, if that answers in the store's place; else see that the key is free in time.

        Args:
            error: why the store did not answer.
            free_at: when the key shall be free, in the loop's time.
        """
        try:
            self.gate.counted(ReleaseOp(self.op.wire, self.op.owner, self.fence), error, self.gate.now)
        except UnavailableError:
            self.gate.connection.undo.add(self.op, self.fence, free_at)

    async def record_unstorable(self) -> None:
        """Record that the last result cannot be stored; raises as `complete`. See `fail_as_done`."""
        error, done_ms = {"type": self._unstorable, "message": codec.UNSTORABLE}, self._unstorable_ms
        # Either is raised if `max_result` is that small, or if the codec takes no such thing.
        with contextlib.suppress(ResultError, ResultTooLargeError):
            await self.fail_as_done(error, done_ms)
            return
        await self.fail_as_done(None, done_ms)

    async def fail_as_done(self, error: Any, done_ms: int | None = None) -> None:
        """Record an error in place of a result, for work that was done or may have been; raises as `complete`.

        It is remembered as long as a success (or for `done_ms` milliseconds), because the work must not run again.
        Every face records such work by this.
        """
        keep_ms = self._success_ms() if done_ms is None else done_ms
        await self._finish("failed", self._outcome_op("failed", error, None, done_ms=keep_ms))


async def traced(tracing: Tracing, span: Any, settling: Coroutine[Any, Any, None]) -> None:
    """Settle within a span."""
    try:
        await settling
    except BaseException as error:
        tracing.ended(span, error)
        raise
    tracing.ended(span, None)


def settle_until(within: Any) -> float | None:
    """Return when to give up settling, by time.monotonic(), if it ends before the lease does.

    Raises:
        ConfigError: `within` is not a time in seconds.
    """
    if within is None:
        return None
    if type(within) is float and 0.0 <= within <= 1.0:  # not by a call: so a web response is settled
        return monotonic() + within
    return monotonic() + check_seconds(within, "within", least=0.0)
