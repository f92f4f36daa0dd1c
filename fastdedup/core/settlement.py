"""The life of a claim: from the answer that acquired its key to the record of how its work ended."""

from __future__ import annotations

import asyncio
import contextlib
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
)
from ..kernel.operations import ClaimOp, ReleaseOp, SettleOp, Verdict
from ..model import Outcome
from .connection import LONGEST_PAUSE
from .gate import Gate
from .held_claim import ABANDONED, LOST, HeldClaim
from .tracing import Tracing

_ACQUIRED: Final = Outcome.ACQUIRED  # naming an enum's member through its class costs 50 ns on Python 3.11
_TRIES: Final = Backoff(0.02, LONGEST_PAUSE, growth=2.0)
"""The pauses between two tries to settle while the store is unavailable."""
_SHORTEST_LEASE: Final = 0.001
"""Seconds: stores count milliseconds."""
Loss = tuple[str, str]
"""What is logged if no caller is left to get an error: the kind of line, and its text for the key and the error."""
_LOSS: Final[Loss] = (
    "results that were not recorded",
    "%s: its caller was cancelled, and its result could not be recorded: %s",
)


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
    """The life of one claim, which integrations steer: `claim.settlement`.

        LIVE → RECORDING → SETTLED     an outcome is being recorded, then it is recorded, or the key is free
           ↘            ↘ LOST         another owner has the key, or its lease has ended
             ABANDONED                 handed over: its lease ends by itself

    `state` says where it is. Of LIVE and RECORDING these lead on:

    - `complete`, `fail` and `release` are a user's, and raise what `Claim.complete` raises.
    - `record` is for work that must not run again, whatever becomes of its result; it can go on alone.
    - `mirror` is for a result that is kept elsewhere too, such as in an inbox's row.
    - `free` is for work that was not done; it can leave the key held for a while.
    - `abandon` hands the claim over to its lease.
    - `guard`, then `leave` or `unguard`, stop a body whose lease is lost. `leave` settles what its body did not.

    All of them may be cancelled: what was begun goes on without the caller. The arguments are those of `HeldClaim`.

    Attributes:
        fault: an error that the work has raised and its caller has caught, for the span.
        renewal: what keeps the lease alive.
        stopped_body: whether the guarded work was stopped because the lease was lost.
    """

    __slots__ = (
        "_body",
        "fault",
        "renewal",
        "stopped_body",
        "trace",
    )
    # What most claims never need is not set for all of them: `guard` adds whose body it guards.

    trace: object
    """The context of the claim's span; set by what traces."""

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
        """Record an outcome, or that it cannot be stored: the work was done, and must not run again.

        Args:
            value: the result, or the error of work that failed.
            succeeded: complete the claim; else fail it.
            done: remember a failure as long as a success, because the work was done, or may have been.
            instead: called with the error by which `value` cannot be stored; returns what is recorded in its place,
                None if that is a failure that says no more.
            within: seconds for which it is tried while the store is unavailable; by default until the lease ends.
            alone: go on without the caller, until the lease ends, if that time is over or the caller is cancelled.
                This is logged if it is in vain.

        Returns:
            False if it goes on alone.

        Raises:
            DedupError: what `Claim.complete` raises, but not that the outcome cannot be stored.
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

        That answers duplicates, so nothing that fails here is an error. A result that cannot be stored frees the key.
        One that is not recorded `within` these seconds leaves it to its lease.
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
            # Again, by itself: completing a claim twice does no harm. A task for each would cost more than the claim.
            self.gate.connection.keep(self.mirror(result, within=within))
            raise
        else:
            return
        await self.free()

    async def free(self, *, after: Seconds = 0.0) -> DedupError | None:
        """Free the key in any case: as soon as the store answers, and at the latest as its lease ends.

        The claim is not settled any more then. That of an owner that the caller named may end with its lease: the
        same name gets it back.

        Args:
            after: seconds in which the key shall be free, by a lease that ends then: copies of a message that are
                here already would else spend all its attempts without a delay. If the store does not answer, it is
                not asked to release the key now, because that could take effect too soon.

        Returns:
            What `Claim.release` would have raised.

        Raises:
            ConfigError: `after` is no time.
        """
        seconds = 0.0 if after == 0.0 else check_seconds(after, "after", least=0.0)
        try:
            if seconds >= _SHORTEST_LEASE:
                self.renew_no_more()
                await self._end_lease(seconds)
            else:
                await self._free()
        except DedupError as error:
            return error
        finally:
            self.abandon()
        return None

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
        # Not awaited above: compiled by mypyc, that crashes if it is cancelled.
        if smaller is None:
            await self._record_unstorable(until, alone=alone, goes_on=goes_on)
        else:
            await self._record(smaller, succeeded, done, None, until, alone=alone, goes_on=goes_on)

    async def _record_unstorable(
        self, until: float | None = None, *, alone: bool = False, goes_on: bool = False
    ) -> None:
        """Record that the last result cannot be stored; raises as `complete`. Arguments as of `_finish`."""
        error, done_ms = {"type": self._unstorable, "message": codec.UNSTORABLE}, self._unstorable_ms
        # Either is raised if `max_result` is that small, or if the codec takes no such thing.
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
        """Settle. An outcome is sent again and again until the lease ends, or `until`; see `settle_until`.

        The lease ends by the claim's own clock, which started before the store's.

        Args:
            how: how it is settled.
            op: settles it.
            until: when to give up.
            traces: make a span.
            alone: its caller was cancelled.
            goes_on: its caller goes on by itself if it gives up or is cancelled, and so counts once what comes of it.
        """
        tracing = self.gate.observers.tracing
        if tracing is not None and traces and (span := tracing.settling(self, how)) is not None:
            return await traced(
                tracing, span, self._finish(how, op, until, traces=False, alone=alone, goes_on=goes_on)
            )
        recording = getattr(self, "recording", None)
        if recording is not None and not alone:  # its caller was cancelled, and says anew how it ends
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
            if not alone:  # it goes on by itself
                self._note_unsure(how)
                if isinstance(op, SettleOp):
                    self.settled = None
                    if not goes_on:
                        self._go_on(_LOSS, lambda: self._finish(how, op, until, traces=False, alone=True))
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

    def _go_on(self, loss: Loss, record: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Go on recording an outcome that its caller does not wait for; log it if that fails."""
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
        """Log that an outcome was not recorded whose caller was cancelled."""
        self.warn(*_LOSS, why)

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
        body = getattr(self, "_body", None)
        self.unguard()
        if self.verdict.outcome is not _ACQUIRED:
            return
        if self.lost_in_outage and not self.settling and (release or error is not None):
            # A renewal that still lies in a socket would hold the key for an owner that has stopped.
            self.gate.connection.free_soon(self.op, self.fence)
        if body is not None and self.stopped_body:
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
                    await asyncio.shield(self.gate.connection.keep(self._record_unstorable()))
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
                await self._record_unstorable()
                return
            await self.complete()  # if this task is cancelled, recording goes on by itself
            return
        # Not tied to this task: cancelling it leaves the settling to finish by itself.
        settling = self.gate.connection.keep(self._free())
        if error is None:
            await asyncio.shield(settling)
            return
        # The body's own error matters more than that of freeing the key.
        with contextlib.suppress(DedupError):
            await asyncio.shield(settling)

    async def _free(self) -> None:
        """Release, if no caller is there to try again: as soon as the store answers, if it does not now."""
        try:
            await self.release()
        except UnavailableError:
            self.gate.connection.orphans.add(self.op, self.fence)
            raise


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
