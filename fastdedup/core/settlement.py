"""The life of a claim: from the answer that acquired its key to the record of how its work ended."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Final, Protocol

from .. import codec
from ..backoff import Backoff
from ..checks import Seconds, check_seconds
from ..compiled import mypyc_attr
from ..errors import (
    ClaimLostError,
    DedupError,
    ResultError,
    ResultTooLargeError,
    ShortfallError,
    UnavailableError,
    UsageError,
    is_answer,
)
from ..kernel.operations import ClaimOp, ReleaseOp, SettleOp, Verdict
from ..model import Outcome
from .connection import LONGEST_PAUSE
from .gate import Gate
from .held_claim import ABANDONED, LOST, HeldClaim
from .renewal import Renewal
from .tracing import traced

_ACQUIRED: Final = Outcome.ACQUIRED  # naming an enum's member through its class costs 50 ns on Python 3.11
_TRIES: Final = Backoff(0.02, LONGEST_PAUSE, growth=2.0)
"""The pauses between two tries to settle while the store is unavailable."""
_SHORTEST_LEASE: Final = 0.001
"""In seconds, because stores count milliseconds."""
Loss = tuple[str, str]
"""The log line for an error that no caller is left to get: its kind, and its text for the key and the error."""
_LOSS: Final[Loss] = (
    "results that were not recorded",
    "%s: its caller was cancelled, and its result could not be recorded: %s",
)


class Body(Protocol):
    """The part of the work that a lost lease uses: an asyncio.Task has it."""

    def cancel(self) -> bool:
        """Stop it. Return False if it cannot be stopped: then it goes on, and its end settles the claim."""

    def uncancel(self) -> int:
        """Undo that; return how many other cancellations are left."""

    def cancelling(self) -> int:
        """Return how many cancellations it has now, caught ones too."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Settlement(HeldClaim):
    """The life of one claim, which integrations steer: `claim.settlement`.

        LIVE → RECORDING → SETTLED     an outcome is being recorded, then it is recorded, or the key is free
           ↘            ↘ LOST         another owner has the key, or its lease has ended
             ABANDONED                 left alone: its lease ends by itself

    `state` is its stage. These lead on from LIVE and RECORDING:

    - `complete`, `fail` and `release` are for users, and raise the errors of `Claim.complete`.
    - `record` is for work that must not run again, even if its result cannot be stored; it can go on alone.
    - `mirror` is for a result that is kept elsewhere too, such as in an inbox's row.
    - `free` is for work that was not done; it can leave the key held for a while.
    - `abandon` leaves the claim to its lease.
    - `guard`, then `leave` or `unguard`, stop a body whose lease is lost. `leave` settles the claim if its body did
    not.

    All of them may be cancelled: the settlement that was begun goes on without the caller. The arguments are those of
        `HeldClaim`.

    Attributes:
        fault: an error that the work has raised and its caller has caught, for the span.
        stopped_body: whether the guarded work was stopped because the lease was lost.
    """

    __slots__ = (
        "_body",
        "_by_row",
        "_cancelled_before",
        "fault",
        "stopped_body",
        "trace",
    )
    # Attributes that most claims never need are not set for all of them: `guard` adds the body.

    trace: object
    """The context of the claim's span; set by the tracer."""

    def __init__(self, gate: Gate, op: ClaimOp, verdict: Verdict) -> None:
        super().__init__(gate, op, verdict)
        self.fault: BaseException | None = None

    # The ends of a claim. For their descriptions and errors see the methods of `Claim`

    async def complete(
        self, result: Any = None, ttl: Seconds | None = None, *, within: Seconds | None = None
    ) -> None:
        """Record success; a duplicate names the type of the result to `Claim.replay`."""
        self._check_by_hand()
        op = self._outcome_op("completed", result, ttl, json_of=self.json_of)
        await self._finish("completed", op, settle_until(within))

    async def fail(
        self, error: Any = None, ttl: Seconds | None = None, *, within: Seconds | None = None
    ) -> None:
        """Record a failure for good."""
        self._check_by_hand()
        op = self._outcome_op("failed", error, ttl)
        await self._finish("failed", op, settle_until(within))

    async def release(self) -> None:
        """Free the key: nothing happened, the next claimant may try."""
        self._check_live("released")
        op = ReleaseOp(self.op.wire, self.op.owner, self.verdict.fence)
        op.resent = self._may_be("released")
        await self._finish("released", op)
        self._unsure = ()
        if hasattr(self.op, "resent"):
            self.gate.connection.orphans.watch(self.op)

    async def record(
        self,
        value: Any = None,
        *,
        succeeded: bool = True,
        done: bool = True,
        instead: Callable[[DedupError], Any] | None = None,
        within: Seconds | None = None,
        alone: Loss | None = None,
    ) -> bool:
        """Record an outcome, or the fact that it cannot be stored: the work was done, and must not run again.

        Args:
            value: the result, or the error of work that failed.
            succeeded: complete the claim; else fail it.
            done: remember a failure as long as a success, because the work was done, or may have been.
            instead: called with the error if `value` cannot be stored; returns the value to record in its place,
                None for a failure without further data.
            within: seconds of retries while the store is unavailable; by default until the lease ends.
            alone: go on without the caller, until the lease ends, if that time is over or the caller is cancelled.
                If that fails, it is logged.

        Returns:
            False if it goes on alone.

        Raises:
            DedupError: the errors of `Claim.complete`, except that the outcome cannot be stored.
        """
        until = settle_until(within)
        try:
            await self._record(value, succeeded, done, instead, until, goes_on=alone is not None)
            return True
        except (UnavailableError, asyncio.CancelledError) as error:
            if alone is None:
                raise
            self._go_on(alone, lambda: self._record(value, succeeded, done, instead, None, alone=True))
            if isinstance(error, asyncio.CancelledError):
                raise
        return False

    async def mirror(self, result: Any, *, within: Seconds) -> None:
        """Complete the claim with a result that is kept elsewhere too, such as in an inbox's row.

        The row answers duplicates, so a failure here is not an error. If the result cannot be stored, the key is
        freed. If it is not recorded `within` these seconds, the key stays held until its lease ends.
        """
        until = settle_until(within)
        try:
            await self._finish("completed", self._outcome_op("completed", result, None), until)
        except (ClaimLostError, UnavailableError):
            self.abandon()
            return
        except DedupError:
            pass
        except asyncio.CancelledError:
            # Again, in a task: it does no harm to complete a claim twice. A task for each claim would cost too much.
            self.gate.connection.keep(self.mirror(result, within=within))
            raise
        else:
            return
        await self.free()

    async def free(self, *, after: Seconds = 0.0) -> Exception | None:
        """Free the key in any case: as soon as the store answers, and at the latest when its lease ends.

        Then the claim cannot be settled any more. If the caller named its owner, it may end with its lease: the same
        name gets it back.

        Args:
            after: seconds until the key is free, by a lease that ends then: otherwise copies of a message that are
                here already would spend all its attempts without a delay. If the store does not answer, no release
                is sent now, because that could take effect too soon.

        Returns:
            The error that `Claim.release` would have raised.

        Raises:
            ConfigError: `after` is not a time.
        """
        seconds = 0.0 if after == 0.0 else check_seconds(after, "after", least=0.0)
        try:
            if seconds >= _SHORTEST_LEASE:
                self.renew_no_more()
                await self._end_lease(seconds)
            else:
                await self.release_soon()
        except Exception as error:  # noqa: BLE001 -- also one of the user's policy: its caller decides
            return error
        finally:
            self.abandon()
        return None

    def abandon(self) -> None:
        """Never settle it: its lease ends by itself, and the end of `async with` records nothing."""
        if self.settled is None:
            self.settled = ABANDONED
        if self.renewal is not None:
            self.renewal.stop()

    def keep_renewed(self, holder: weakref.ref[Any] | None = None) -> None:
        """Renew the lease until the claim is settled. Does nothing if it is renewed, settled or lost already.

        `holder`: the renewal ends if this object is collected; None if `leave` or `unguard` ends it in any case.
        """
        if self.renewal is not None or self.is_over or self.lost:
            return
        lease = self.op.terms.lease_ms / 1000
        queue = self.gate.connection.renewals.of(lease)
        self.renewal = Renewal(self, lease, queue, self.lease_began(queue.loop.time(), lease), holder)

    def renew_no_more(self) -> None:
        """Stop the renewal: the lease ends, unless it is renewed by hand."""
        if self.renewal is not None:
            self.renewal.stop()
            self.renewal = None

    # Settling

    async def _record(
        self,
        value: Any,
        succeeded: bool,
        done: bool,
        instead: Callable[[DedupError], Any] | None,
        until: float | None,
        *,
        alone: bool = False,
        goes_on: bool = False,
    ) -> None:
        """See `record`; the last arguments are those of `_finish`."""
        how = "completed" if succeeded else "failed"
        try:
            done_ms = self.op.success_ms if done and not succeeded else None
            op = self._outcome_op(how, value, None, done_ms=done_ms)
            await self._finish(how, op, until, alone=alone, goes_on=goes_on)
        except (ResultError, ResultTooLargeError) as error:
            smaller = None if instead is None else instead(error)
        else:
            return
        # Not awaited above, because mypyc's code crashes if it is cancelled there.
        if smaller is None:
            await self._record_unstorable(until, alone=alone, goes_on=goes_on)
        else:
            await self._record(smaller, succeeded, done, None, until, alone=alone, goes_on=goes_on)

    async def _record_unstorable(
        self, until: float | None = None, *, alone: bool = False, goes_on: bool = False
    ) -> None:
        """Record that the last result cannot be stored. Errors: see `complete`; arguments: see `_finish`."""
        error, done_ms = {"type": self._unstorable, "message": codec.UNSTORABLE}, self._unstorable_ms
        # Either error comes if `max_result` is very small, or if the codec does not take this value.
        with contextlib.suppress(ResultError, ResultTooLargeError):
            op = self._outcome_op("failed", error, None, done_ms=done_ms)
            await self._finish("failed", op, until, alone=alone, goes_on=goes_on)
            return
        op = self._outcome_op("failed", None, None, done_ms=done_ms)
        await self._finish("failed", op, until, alone=alone, goes_on=goes_on)

    async def _finish(
        self,
        how: str,
        op: SettleOp | ReleaseOp,
        until: float | None = None,
        *,
        traces: bool = True,
        alone: bool = False,
        goes_on: bool = False,
    ) -> None:
        """Settle. An outcome is sent again and again until the lease ends, or until `until`; see `settle_until`.

        The lease ends by the claim's own clock, which started before the store's.

        Args:
            how: the way in which it is settled.
            op: the operation that settles it.
            until: when to give up.
            traces: make a span.
            alone: its caller was cancelled.
            goes_on: its caller goes on by itself if it gives up or is cancelled, and so counts the outcome once.
        """
        tracing = self.gate.observers.tracing
        if tracing is not None and traces and (span := tracing.settling(self, how)) is not None:
            return await traced(
                tracing, span, self._finish(how, op, until, traces=False, alone=alone, goes_on=goes_on)
            )
        recording = getattr(self, "recording", None)
        if recording is not None and not alone:  # its caller was cancelled, and now settles it anew
            recording.cancel()
            self.recording = None
        self.settled, self.under_way = how, True
        tries, began = 0, self.gate.now
        try:
            while True:
                try:
                    return await self._act(op)
                except UnavailableError as error:
                    if not isinstance(op, SettleOp) or error.unrecorded:
                        raise
                    left = self._time_to_settle(until)
                    if left <= 0:
                        if not goes_on:
                            self.gate.refused(op, error, began)
                        error.unrecorded = not isinstance(error, ShortfallError)
                        raise
                await asyncio.sleep(min(left, _TRIES.pause(tries)))
                tries += 1
        except ClaimLostError:
            self.settled = LOST
            self._tell_lost()
            raise
        except asyncio.CancelledError:
            if not alone:  # its caller goes on by itself
                self._note_unsure(how)
                if isinstance(op, SettleOp):
                    self.settled = None
                    if not goes_on:
                        self._go_on(_LOSS, lambda: self._finish(how, op, until, traces=False, alone=True))
                else:
                    self.gate.connection.free_soon(self.op, self.fence, asked=True)
            raise
        except BaseException as error:
            if not is_answer(error):
                self._note_unsure(how)
            # A sidecar's limit is lower.
            if isinstance(error, ResultTooLargeError) and isinstance(op, SettleOp):
                self._note_unstorable(error, op.keep_ms, succeeded=op.succeeded)
            if self.settled == how:
                self.settled = None
            raise
        finally:
            self.under_way = False
            if self.settled is not None and self.renewal is not None:
                self.renewal.stop()

    def _go_on(self, loss: Loss, record: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Go on recording an outcome that no caller waits for; if that fails, log it."""
        self.recording = self.gate.connection.keep(self._record_alone(loss, record))

    async def _record_alone(self, loss: Loss, record: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await record()
        except DedupError as error:
            self.warn(*loss, error)
            raise
        except asyncio.CancelledError:
            if self.recording is asyncio.current_task():  # not replaced by another outcome
                self.warn(*loss, "its event loop has ended")
            raise

    def warn_of_loss(self, why: object) -> None:
        """Log that the outcome of a cancelled caller was not recorded."""
        self.warn(*_LOSS, why)

    def _time_to_settle(self, until: float | None) -> float:
        left = self.lease_left
        return left if until is None else min(left, until - monotonic())

    def leave_to_row(self) -> None:
        """Refuse `complete` and `fail`: the row of a transaction decides, and that may still be rolled back."""
        self._by_row: bool = True

    def _check_by_hand(self) -> None:
        if getattr(self, "_by_row", False):
            raise UsageError(
                f"{self.key!r} commits with its response, so do not complete or fail it: return a response"
            )

    # The `async with` body

    def guard(self, body: Body | None) -> None:
        """Remember the work to cancel if the lease is lost; None for work that cannot be stopped."""
        self._body: Body | None = body
        self._cancelled_before = 0 if body is None else body.cancelling()
        self.stopped_body = False

    def lose(self, *, outage: bool) -> None:
        """Stop the body before another owner starts, because the lease could not be renewed. See `note_lost`."""
        self.note_lost(outage=outage)
        self._tell_lost()
        body = getattr(self, "_body", None)
        # If a row decides, the body goes on in an outage: the row answers another owner.
        if body is not None and not (outage and getattr(self, "_by_row", False)):
            self.stopped_body = body.cancel()

    def unguard(self) -> None:
        """Note that the body is over: cancel no task, and stop the renewal."""
        self._body = None
        if self.renewal is not None:
            self.renewal.stop()

    async def leave(self, error: BaseException | None, *, release: bool = False) -> None:
        """Settle on the way out of `async with`, shielded from cancellation; see `Dedup.claim`."""
        body = getattr(self, "_body", None)
        self.unguard()
        if self.verdict.outcome is not _ACQUIRED:
            return
        if self.lost_in_outage and not self.settling and (release or error is not None):
            # A renewal that is still in a socket would hold the key for an owner that has stopped.
            self.gate.connection.free_soon(self.op, self.fence)
        if body is not None and self.stopped_body:
            # A cancellation from outside too: that one has priority. Not one that was caught before the work.
            outside = body.uncancel() > self._cancelled_before
            if not outside and (error is None or isinstance(error, asyncio.CancelledError)):
                raise ClaimLostError(
                    f"the lease of {self.key!r} was lost while its body ran", outage=self.lost_in_outage
                ) from None
            return
        recording = getattr(self, "recording", None)
        if error is None and recording is not None:
            # Not with a shield: a caller that settles it anew meanwhile cancels the recording, and not this task.
            await asyncio.wait([recording])
            if not recording.cancelled():
                recording.result()
            return
        if self.settled is not None:
            return
        if error is not None and self.settling:
            if self._unstorable:  # even if the body has caught that error
                with contextlib.suppress(Exception):
                    await asyncio.shield(self.gate.connection.keep(self._record_unstorable()))
            return
        if self.lost:
            if error is None and self.lost_in_outage and not release:
                # The body has still ended, in a thread. The store knows whether another owner has the key.
                await self.complete()
            elif error is None:
                raise self.lost_error()
            return
        if error is None and not release and not self._may_be("released"):
            if self.settling and self._unstorable:  # because the body has not returned None
                await self._record_unstorable()
                return
            await self.complete()  # if this task is cancelled, recording goes on by itself
            return
        # Not tied to this task: cancelling it leaves the settling to finish by itself.
        settling = self.gate.connection.keep(self.release_soon())
        if error is None:
            await asyncio.shield(settling)
            return
        # The body's own error matters more than any of freeing the key, such as one of the user's policy.
        with contextlib.suppress(Exception):
            await asyncio.shield(settling)

    async def release_soon(self, *, asked: bool = False) -> None:
        """Release without a caller that could retry: if the store does not answer now, as soon as it does.

        `asked`: see `Orphans.add`.
        """
        try:
            await self.release()
        except ShortfallError:
            raise  # it was done
        except Exception as error:
            if not is_answer(error):
                self.gate.connection.orphans.add(self.op, self.fence, asked=asked)
            raise


def settle_until(within: Any) -> float | None:
    """Return when to give up settling, by time.monotonic(), if it ends before the lease does.

    Raises:
        ConfigError: `within` is not a time in seconds.
    """
    if within is None:
        return None
    if type(within) is float and 0.0 <= within <= 1.0:  # without a call, for the settling of web responses
        return monotonic() + within
    return monotonic() + check_seconds(within, "within", least=0.0)
