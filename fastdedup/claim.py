"""The answer to a claim, and the right to settle it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from time import monotonic
from typing import Any, Final, Protocol, cast

from . import codec
from .checks import Seconds, check_seconds, milliseconds
from .compiled import mypyc_attr
from .core.connection import LONGEST_PAUSE
from .core.gate import Gate
from .core.tracing import Tracing
from .downstream import downstream_key
from .errors import (
    ClaimLostError,
    DedupError,
    InProgressError,
    InvalidKeyError,
    MismatchError,
    ResultError,
    ResultTooLargeError,
    ShortfallError,
    UnavailableError,
    UsageError,
    first_run_failed,
)
from .kernel.granted import note_use
from .kernel.operations import ClaimOp, Code, Op, ReadOp, ReleaseOp, RenewOp, SettleOp, Stored, Verdict
from .kernel.owners import owner_text
from .ledger.operations import ECHO_MS, RememberedClaimOp, RememberedSettleOp
from .model import Outcome

_ACQUIRED: Final = Outcome.ACQUIRED  # naming an enum's member through its class costs 50 ns on Python 3.11
_SUCCEEDED: Final = Outcome.SUCCEEDED
_SHAREABLE: Final = (str, int, float, bool)
"""Decoded once for all who ask; what could be changed by one caller is decoded for each."""
_LOST: Final = "lost"
_SETTLED: Final = {"S": "completed", "F": "failed", "R": "released"}
"""How a record in that state was settled."""
_FIRST_PAUSE: Final = 0.02
"""Seconds between two tries to settle while the store is unavailable, at first."""


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
class Claim:
    """The answer to a claim, and while `acquired`, the right to settle it.

    Settle it once, with `complete`, `fail` or `release`. Each of these raises ClaimLostError where
    another owner has the key by now (nothing was changed), UnavailableError where the store did not
    answer (call it again: repeating is safe), UsageError on a claim that is not acquired, is
    settled already, or belongs to another event loop. `complete` and `fail` are tried again until the
    lease ends before they give up: the effect has happened, and its result must not be lost to a
    blip. `within` seconds end that sooner. The UnavailableError then has `unrecorded`.

    A claim has no truth value: ask `claim.acquired`.
    """

    __slots__ = (
        "_body",
        "_call",
        "_ends",
        "_gate",
        "_goes_on",
        "_lost",
        "_outage",
        "_recording",
        "_renewal",
        "_settled",
        "_settling",
        "_stopped_body",
        "_told_lost",
        "_trace",
        "_unstorable",
        "_unstorable_ms",
        "_unsure",
        "_verdict",
    )
    # What most claims never need is not set for all of them: `_bind_body` adds whose body it guards.

    _ends: float
    """When the lease ends, in the loop's time, once somebody has asked or renewed."""
    _goes_on: bool
    """True where whoever gives up recording goes on with that by himself, and so counts once what comes of it."""
    _outage: bool
    """Set where the lease is lost: True where the store has not said so, but did not answer until it ended."""
    _recording: asyncio.Task[None] | None
    """Goes on recording an outcome whose caller was cancelled; set once one was."""
    _told_lost: bool
    """Set once the gate's listeners know that the lease is lost."""
    _trace: object
    """The context of the claim's span; set by whoever traces."""
    _unsure: tuple[str, ...]
    """How it was settled without a reply: each of these may have taken effect."""
    _unstorable: str
    """The type of the error by which the last result cannot be stored, "" where it can; set once one was given."""
    _unstorable_ms: int
    """For how many milliseconds that result would have been remembered."""

    def __init__(self, gate: Gate, call: ClaimOp, verdict: Verdict) -> None:
        self._gate = gate
        self._call = call
        self._verdict = verdict
        # Mutable: how it was settled; whether the lease is known to be lost; whether completing or failing was
        # tried (the effect has happened, so leaving never frees the key); who renews.
        self._settled: str | None = None
        self._lost = False
        self._settling = False
        self._renewal: Stoppable | None = None

    def __bool__(self) -> bool:
        raise TypeError("a claim has no truth value: a duplicate's is a claim too; ask claim.acquired")

    def __repr__(self) -> str:
        return f"<Claim {self.key!r} {self.outcome} fence={self.fence} attempt={self.attempt}>"

    @property
    def outcome(self) -> Outcome:
        """What the claimant found."""
        return self._verdict.outcome

    @property
    def acquired(self) -> bool:
        """True for the claimant that shall do the work."""
        return self._verdict.outcome is _ACQUIRED

    @property
    def key(self) -> str:
        """The idempotency key; for a token a digest of it."""
        return self._call.key

    @property
    def owner(self) -> str:
        """This claimant's own name, never another's. Whoever knows it can settle the claim."""
        return owner_text(self._call.owner)

    @property
    def fence(self) -> int:
        """The present owner's fence, which rises from owner to owner of a key; 0 where it is not known.

        Hand it to what you write to, which can then refuse an owner that was overtaken. It is the server's time
        in microseconds, and never below the latest time that this client has seen from the store. What stays
        open: a key that has expired or was forgotten leaves no memory, so after the server's clock was set
        back, a client that never saw the later time may be given a lower fence for that key.
        """
        return self._verdict.fence

    @property
    def attempt(self) -> int:
        """How often the key was acquired: 1 for the first, more after takeovers and releases."""
        return self._verdict.attempt

    @property
    def result(self) -> Any:
        """The first result where the outcome is SUCCEEDED; a fresh copy each time."""
        verdict = self._verdict
        if verdict.outcome is not _SUCCEEDED or not verdict.payload:
            return None
        if verdict.value is not None:
            return verdict.value
        value = codec.decode(self._gate.settings.codec, verdict.payload, self.key)
        if type(value) in _SHAREABLE:
            verdict.value = value
        return value

    @property
    def remembered(self) -> bool:
        """True where only a ledger knows of the success (`remember=`): then `result` is None, as it is not kept."""
        verdict = self._verdict
        return verdict.outcome is _SUCCEEDED and not verdict.attempt  # a record counts at least one attempt

    @property
    def error(self) -> Any:
        """The recorded error where the outcome is FAILED; a fresh copy each time."""
        if self.outcome is not Outcome.FAILED:
            return None
        return codec.decode_error(self._gate.settings.codec, self._verdict.payload, self.key)

    @property
    def lease(self) -> float | None:
        """Seconds that this claim's lease had left when it was answered; None unless acquired."""
        return self._verdict.left_ms / 1000 if self.acquired else None

    @property
    def retry_after(self) -> float | None:
        """Seconds until the present owner's lease ends at the latest; None unless IN_PROGRESS."""
        return self._verdict.left_ms / 1000 if self.outcome is Outcome.IN_PROGRESS else None

    @property
    def degraded(self) -> bool:
        """True where the fallback policy answered instead of the store."""
        return self._verdict.degraded

    @property
    def confirmed(self) -> bool:
        """False where it was acquired and too few replicas had that in time (`replicas=`)."""
        return not self._verdict.short

    @property
    def lost(self) -> bool:
        """True once the lease is known to be lost."""
        return self._lost

    def downstream(self, name: str) -> str:
        """Return the idempotency key for a call that the work makes, such as `claim.downstream("stripe")`.

        It is the same for every attempt and owner of this key, also after its record has expired or was forgotten,
        and another one for each name: give each call its own. A UUID as text.

        Raises:
            InvalidKeyError: the name is empty, longer than 1,024 characters, or no text.
        """
        return downstream_key(self._base_wire, name)

    @property
    def _base_wire(self) -> bytes:
        """The store key, which for a claim with `remember=` is that of the same claim without a ledger."""
        call = self._call
        if call.terms.remembered:
            return self._gate.claims.wire(call.key)
        return call.wire

    def replay(self) -> Any:
        """Return the result of a success, for a duplicate that wants what the first call returned.

        Raises:
            FailedError: the first run ended in a failure that was recorded; `error` is what it recorded.
            InProgressError: another owner is at work; `retry_after` says how long at most.
            MismatchError: the key is known with another fingerprint, or the token with another subject.
            InvalidKeyError: the token was never issued, or has expired.
            UsageError: this claim is acquired: there is nothing to replay, do the work.
        """
        match self.outcome:
            case Outcome.SUCCEEDED:
                return self.result
            case Outcome.FAILED:
                raise first_run_failed(self.key, self.error)
            case Outcome.IN_PROGRESS:
                after = self.retry_after or 0.0
                raise InProgressError(f"{self.key!r} is in progress elsewhere", retry_after=after)
            case Outcome.MISMATCH:
                raise MismatchError(f"{self.key!r} was used before with another fingerprint")
            case Outcome.UNKNOWN:
                raise InvalidKeyError(f"{self.key!r} was never issued, or has expired")
            case _:
                raise UsageError(
                    f"this claim of {self.key!r} is acquired, there is nothing to replay: do the work and complete it"
                )

    async def complete(
        self, result: Any = None, ttl: Seconds | None = None, *, within: Seconds | None = None
    ) -> None:
        """Record success: every duplicate gets `result` for `ttl` seconds (the namespace's by default).

        Where a ledger remembers the success (`remember=`), it does so for its window, and `ttl` says only for how
        long `result` is kept: a minute by default.

        It is tried for `within` seconds while the store is unavailable; by default until the lease ends.

        Raises:
            ResultError: the codec cannot encode the result.
            ResultTooLargeError: it is larger than `max_result`; the claim stays live.
            ClaimLostError: another owner has the key, or it was forgotten.
            UnavailableError: it could not be recorded; `unrecorded` is True. Also where the store is back without
                its data.
        """
        until = settle_until(within)
        await self._finish("completed", self._outcome_op("completed", result, ttl), until)

    async def fail(
        self, error: Any = None, ttl: Seconds | None = None, *, within: Seconds | None = None
    ) -> None:
        """Record a failure for good: every duplicate gets `error` for `ttl` seconds (`failure_ttl` by default).

        For a failure that a retry may mend, `release` instead. An exception is recorded as its type's name and its
        text, which is cut to fit into `max_result`. Any other error must be JSON-able: it does not pass through
        `codec=`. Raises as `complete`.
        """
        until = settle_until(within)
        await self._finish("failed", self._outcome_op("failed", error, ttl), until)

    async def release(self) -> None:
        """Free the key: nothing happened, the next claimant may try.

        If the caller is cancelled before the store has answered, the key is freed as soon as the store answers.
        """
        self._check_live("released")
        op = ReleaseOp(self._call.wire, self._call.owner, self._verdict.fence)
        op.unsure = self._may_be("released")
        await self._finish("released", op)
        self._unsure = ()
        if hasattr(self._call, "unsure"):
            self._gate.connection.undo.watch(self._call)

    async def renew(self, lease: Seconds | None = None) -> None:
        """Start the lease anew from now: `lease` seconds, as long as the first by default."""
        self._check_live()
        terms = self._call.terms
        lease_ms = terms.lease_ms if lease is None else milliseconds(lease, "lease")
        keep_ms = terms.keep_ms - terms.lease_ms + lease_ms
        ends = asyncio.get_running_loop().time() + lease_ms / 1000
        try:
            await self._act(RenewOp(self._call.wire, self._call.owner, self.fence, lease_ms, keep_ms))
        except ClaimLostError:
            if not self._settling and self._settled is None:  # settled meanwhile, it is not lost
                self._tell_lost()
            raise
        self._ends = ends

    # Settling

    def _outcome_op(
        self, how: str, value: Any, ttl: Seconds | None, *, done_ms: int | None = None
    ) -> SettleOp:
        """Return the operation that records an outcome.

        `done_ms`: for a failure whose work was done, or may have been: milliseconds for which it is remembered.
        """
        self._check_live(how)
        self._settling = True
        succeeded = how == "completed"
        settings = self._gate.settings
        if ttl is not None:
            keep_ms = milliseconds(ttl, "ttl")
        elif done_ms is not None:
            keep_ms = done_ms
        elif not succeeded:
            keep_ms = round(settings.failure_ttl * 1000)
        else:
            # A claim's own ttl is what its terms keep beyond the lease.
            terms = self._call.terms
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
        if succeeded and self._call.terms.remembered:
            return self._remembered_op(keep_ms, payload)
        return SettleOp(
            self._call.wire,
            self._call.owner,
            self._verdict.fence,
            succeeded=succeeded,
            keep_ms=keep_ms,
            payload=payload,
        )

    def _note_unstorable(self, error: DedupError, keep_ms: int, *, succeeded: bool) -> None:
        self._unstorable = type(error).__name__  # not the error, whose traceback leads back to this claim
        in_ledger = succeeded and self._call.terms.remembered
        self._unstorable_ms = max(keep_ms, self._success_ms()) if in_ledger else keep_ms

    def _success_ms(self) -> int:
        """Return for how many milliseconds a success is remembered, in the ledger where there is one."""
        terms = self._call.terms
        if terms.remembered:
            ledger = cast(RememberedClaimOp, self._call).ledger_terms
            return ledger.window_ms + ledger.slot_us // 1000 + 1  # until the slot after the window is over
        return terms.keep_ms - terms.lease_ms

    def _remembered_op(self, keep_ms: int, payload: bytes) -> RememberedSettleOp:
        """Return the operation that lets the ledger remember the key, and keeps the record for a moment."""
        call = cast(RememberedClaimOp, self._call)
        return RememberedSettleOp(
            call.wire,
            call.owner,
            self.fence,
            keep_ms=keep_ms,
            payload=payload,
            place=call.place,
            id=call.id,
        )

    def _check_live(self, how: str = "") -> None:
        """Raise an error where the claim cannot be settled as `how` says, or be renewed."""
        if self._verdict.outcome is not _ACQUIRED:
            raise UsageError(f"this claim is {self.outcome}, not acquired: only its owner settles it")
        if self._settled is _LOST:
            raise self._lost_error()
        if self._settled is not None and not self._may_say_anew(how):
            raise UsageError(f"this claim was {self._settled} already; settle it once")

    def _may_say_anew(self, how: str) -> bool:
        """True where the caller was cancelled as it said how it ends; what is recorded by now can be repeated."""
        if self._settled == "released":
            return how == "released" and self._may_be(how)
        recording = getattr(self, "_recording", None)
        return bool(how) and recording is not None and (not recording.done() or how == self._settled)

    def _may_be(self, how: str) -> bool:
        """True where it was settled so without a reply."""
        return how in getattr(self, "_unsure", ())

    def _note_unsure(self, how: str) -> None:
        if not self._may_be(how):
            self._unsure = (*getattr(self, "_unsure", ()), how)

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
        tracing = self._gate.watchers.tracing
        if tracing is not None and traces and (span := tracing.settling(self, how)) is not None:
            return await traced(tracing, span, self._finish(how, op, until, traces=False))
        recording = getattr(self, "_recording", None)
        if recording is not None and not alone:  # its caller was cancelled, and says anew how it ends
            recording.cancel()
            self._recording = None
        self._settled = how
        pause, began = _FIRST_PAUSE, self._gate.now
        try:
            while True:
                try:
                    return await self._act(op)
                except UnavailableError as error:
                    if not isinstance(op, SettleOp) or error.unrecorded:
                        raise
                    left = self._time_to_settle(until)
                    if left <= 0:
                        if not getattr(self, "_goes_on", False):
                            self._gate.refused(op, error, began)
                        error.unrecorded = not isinstance(error, ShortfallError)
                        raise
                await asyncio.sleep(min(left, pause * (0.5 + 0.5 * random.random())))
                pause = min(2 * pause, LONGEST_PAUSE)
        except ClaimLostError:
            self._settled = _LOST
            self._tell_lost()
            raise
        except asyncio.CancelledError:
            if not alone:  # it goes on by itself
                self._note_unsure(how)
                if isinstance(op, SettleOp):
                    self._settled = None
                    self._recording = self._gate.connection.keep(self._record_alone(how, op, until))
                else:
                    self._gate.connection.free_soon(self._call, self.fence, asked=True)
            raise
        except BaseException as error:
            if isinstance(error, UnavailableError):
                self._note_unsure(how)
            if isinstance(error, ResultTooLargeError) and isinstance(
                op, SettleOp
            ):  # a sidecar's limit is lower
                self._note_unstorable(error, op.keep_ms, succeeded=op.succeeded)
            if self._settled == how:
                self._settled = None
            raise
        finally:
            if self._settled is not None and self._renewal is not None:
                self._renewal.stop()

    async def _recorded(self) -> str:
        """Return how the store has this claim settled; "" where its record is another's, or there is none."""
        op, ask = ReadOp(self._call.wire), self._gate
        try:
            answer = await ask.begin(op, degraded=self._verdict.degraded, granted=True)
        except UnavailableError as error:
            found = ask.verdict(op, error)
        else:
            found = ask.verdict(op, answer)
        if not isinstance(found, Stored) or found.owner != self._call.owner or found.fence != self.fence:
            return ""
        return _SETTLED.get(found.state, "")

    async def _record_alone(self, how: str, op: SettleOp, until: float | None) -> None:
        """Go on recording an outcome whose caller was cancelled; where that is in vain, the log tells it."""
        try:
            await self._finish(how, op, until, traces=False, alone=True)
        except DedupError as error:
            self._warn_of_loss(error)
            raise
        except asyncio.CancelledError:
            if self._recording is asyncio.current_task():  # not replaced by another outcome
                self._warn_of_loss("its event loop has ended")
            raise

    def _warn_of_loss(self, why: object) -> None:
        text = "%s: its caller was cancelled, and its result could not be recorded: %s"
        self._warn("results that were not recorded", text, why)

    def _time_to_settle(self, until: float | None) -> float:
        left = self._lease_left()
        return left if until is None else min(left, until - monotonic())

    def _lease_left(self) -> float:
        now = asyncio.get_running_loop().time()
        if not hasattr(self, "_ends"):
            asked = getattr(self._call, "at", now)  # where the policy answered, nothing was sent
            self._ends = asked + self._verdict.left_ms / 1000
        return self._ends - now

    async def _act(self, op: Op) -> None:
        if self._verdict.degraded and isinstance(op, RememberedSettleOp):
            # The store may have come back without its data, and its ledger may have other digests in the same bucket.
            call = cast(RememberedClaimOp, self._call)
            if await call.find_again(None, moves=True):
                op = self._remembered_op(op.keep_ms, op.payload)
            op.ledger_terms = call.ledger_terms
        ask = self._gate
        since, settles = ask.now, isinstance(op, SettleOp)
        try:  # as in `Gate.run`, which would be a coroutine more
            answer = await ask.begin(op, degraded=self._verdict.degraded, granted=True)
        except UnavailableError as error:
            code = ask.counted(op, error, since, is_tried_again=settles)
        else:
            code = ask.counted(op, answer, since, is_tried_again=settles)
        if code == Code.OK:
            if self._call.terms.redeems and isinstance(op, SettleOp):
                note_use(op)
            return None
        if isinstance(op, RememberedSettleOp) and code != Code.LOST:
            call = cast(RememberedClaimOp, self._call)
            await call.find_again(cast(Code, code), moves=self.degraded)
            return await self._act(self._remembered_op(op.keep_ms, op.payload))
        if code == Code.LOST and self.degraded and self._call.terms.remembered:
            elsewhere = await self._elsewhere(op)
            if elsewhere is not None:
                return await self._act(elsewhere)
        if code == Code.LOST and isinstance(op, ReleaseOp | SettleOp) and self._may_be_otherwise(op):
            recorded = await self._recorded()
            if recorded:
                self._settled = recorded
                raise UsageError(f"this claim was {recorded} already; settle it once")
        if code == Code.LOST and isinstance(op, ReleaseOp | SettleOp) and op.unsure:
            if self._lease_left() > 0:
                # Within its lease nobody takes a key that was not freed: the first sending did it, and a settled
                # record has expired since, or the store has lost it.
                if isinstance(op, SettleOp) and op.keep_ms >= self._call.terms.lease_ms:
                    raise self._unrecorded()
                return None
            self._lost = self._outage = True
            raise ClaimLostError(
                f"whether {self.key!r} was settled is not known: the reply was lost, and by now its lease has "
                f"ended (fence {self.fence})",
                outage=True,
            )
        self._lost, self._outage = True, False
        raise self._lost_error()

    def _may_be_otherwise(self, op: ReleaseOp | SettleOp) -> bool:
        """True where it was settled before, in another way and without a reply."""
        how = "released" if isinstance(op, ReleaseOp) else "completed" if op.succeeded else "failed"
        return any(each != how for each in getattr(self, "_unsure", ()))

    async def _elsewhere(self, op: Op) -> Op | None:
        """Return the operation for where the policy has taken the claim; None where that is the same place."""
        call = cast(RememberedClaimOp, self._call)
        if not await call.find_again(Code.STALE, moves=True):
            return None
        if isinstance(op, RememberedSettleOp):
            return self._remembered_op(op.keep_ms, op.payload)
        op.wire = call.wire
        return op

    def _unrecorded(self) -> UnavailableError:
        self._tell_lost()
        error = UnavailableError(
            f"{self.key!r} is not recorded: the reply was lost, and the store answers again without the record "
            f"(fence {self.fence}); it has lost data, or the key was forgotten"
        )
        error.unrecorded = True
        return error

    def _lost_error(self) -> ClaimLostError:
        if self._lost_in_outage:
            return ClaimLostError(
                f"the lease of {self.key!r} ended while the store did not answer (fence {self.fence})",
                outage=True,
            )
        return ClaimLostError(
            f"{self.key!r} is no longer held by this owner (fence {self.fence}): its lease ended, "
            "or it was settled or forgotten elsewhere; nothing was changed"
        )

    # The `async with` body

    def _bind_body(self, body: Body | None) -> None:
        """Remember whom to cancel should the lease be lost."""
        self._body: Body | None = body
        self._stopped_body = False

    def _lose(self, *, outage: bool) -> None:
        """Stop the body before another owner starts, as the lease could not be renewed; see `_outage`."""
        self._lost, self._outage = True, outage
        self._tell_lost()
        body = getattr(self, "_body", None)
        if body is not None:
            self._stopped_body = body.cancel()

    def _tell_lost(self) -> None:
        """Report that the lease is lost, once, whoever found it: a renewal, or what was to settle the claim."""
        if not getattr(self, "_told_lost", False):
            self._told_lost = True
            self._gate.lease_lost(self.key, self.owner, self.fence, outage=self._lost_in_outage)

    def _unbind(self) -> None:
        """The body is over: cancel nobody, and renew no more."""
        self._body = None
        if self._renewal is not None:
            self._renewal.stop()

    async def _leave(self, error: BaseException | None, *, release: bool = False) -> None:
        """Settle on the way out of `async with`, shielded from cancellation; see `Dedup.claim`."""
        body = self._body
        self._unbind()
        if not self.acquired:
            return
        if self._lost_in_outage and not self._settling and (release or error is not None):
            # A renewal that still lies in a socket would hold the key for an owner that has stopped.
            self._gate.connection.free_soon(self._call, self.fence)
        if self._stopped_body and body is not None:
            outside = body.uncancel() > 0  # cancelled from outside as well: that goes first
            if not outside and (error is None or isinstance(error, asyncio.CancelledError)):
                raise ClaimLostError(
                    f"the lease of {self.key!r} was lost while its body ran", outage=self._lost_in_outage
                ) from None
            return
        recording = getattr(self, "_recording", None)
        if error is None and recording is not None:
            # Not by a shield: whoever settles it anew meanwhile cancels the recording, and nobody this task.
            await asyncio.wait([recording])
            if not recording.cancelled():
                recording.result()
            return
        if self._settled is not None:
            return
        if error is not None and self._settling:
            if self._unstorable:  # whatever the body has made of that error
                with contextlib.suppress(DedupError):
                    await asyncio.shield(self._gate.connection.keep(self._record_unstorable()))
            return
        if self._lost:
            if error is None and self._lost_in_outage and not release:
                # The body has ended all the same, in a thread. The store knows whether another owner has the key.
                await self.complete()
            elif error is None:
                raise self._lost_error()
            return
        if error is None and not release and not self._may_be("released"):
            if self._settling and self._unstorable:  # None is not what the body has returned
                await self._record_unstorable()
                return
            await self.complete()  # where this task is cancelled, recording goes on by itself
            return
        # Not tied to this task: cancelling it leaves the settling to finish by itself.
        settling = self._gate.connection.keep(self._free())
        if error is None:
            await asyncio.shield(settling)
            return
        # The body's own error matters more than that of freeing the key.
        with contextlib.suppress(DedupError):
            await asyncio.shield(settling)

    async def _free(self) -> None:
        """Release, where nobody is there to try again: as soon as the store answers, if it does not now.

        The claim of an owner that the caller named ends with its lease: the same name gets it back.
        """
        try:
            await self.release()
        except UnavailableError:
            self._gate.connection.undo.add(self._call, self.fence)
            raise

    def _free_later(self, error: UnavailableError, free_at: float) -> None:
        """Release by the policy, where that answers in the store's place; else see that the key is free in time.

        The store is not asked to release it now, as that could take effect too soon.

        Args:
            error: why the store did not answer.
            free_at: when the key shall be free, in the loop's time.
        """
        ask = self._gate
        try:
            ask.counted(ReleaseOp(self._call.wire, self._call.owner, self.fence), error, ask.now)
        except UnavailableError:
            self._gate.connection.undo.add(self._call, self.fence, free_at)

    async def _record_unstorable(self) -> None:
        """Record that the last result cannot be stored; raises as `complete`. See `_fail_as_done`."""
        error, done_ms = {"type": self._unstorable, "message": codec.UNSTORABLE}, self._unstorable_ms
        # Either is raised where `max_result` is that small, or where the codec takes no such thing.
        with contextlib.suppress(ResultError, ResultTooLargeError):
            await self._fail_as_done(error, done_ms)
            return
        await self._fail_as_done(None, done_ms)

    async def _fail_as_done(self, error: Any, done_ms: int | None = None) -> None:
        """Record an error in place of a result, for work that was done or may have been; raises as `complete`.

        It is remembered as long as a success (or for `done_ms` milliseconds), because the work must not run again.
        Every face records such work by this.
        """
        keep_ms = self._success_ms() if done_ms is None else done_ms
        await self._finish("failed", self._outcome_op("failed", error, None, done_ms=keep_ms))

    # For the library's own integrations

    @property
    def _hold(self) -> tuple[bytes, bytes]:
        """The store key and the owner field: what settling takes, for whoever keeps no claim object."""
        return self._call.wire, self._call.owner

    def _warn(self, kind: str, text: str, *args: object) -> None:
        """Log a line of what became of this claim; its key is the first argument. See `Connection.tell`."""
        self._gate.connection.tell(kind, text, self.key, *args)

    @property
    def _lost_in_outage(self) -> bool:
        """True where the lease is lost, and the store did not answer until it ended: no other owner is known."""
        return self._lost and getattr(self, "_outage", False)

    @property
    def _first_hand(self) -> bool:
        """True where this call acquired the key, False where its owner held it before."""
        return self._verdict.fresh


async def traced(tracing: Tracing, span: Any, settling: Coroutine[Any, Any, None]) -> None:
    """Settle within a span."""
    try:
        await settling
    except BaseException as error:
        tracing.ended(span, error)
        raise
    tracing.ended(span, None)


def settle_until(within: Any) -> float | None:
    """Return when to give up settling, by time.monotonic(), where it ends before the lease does.

    Raises:
        ConfigError: `within` is not a time in seconds.
    """
    if within is None:
        return None
    if type(within) is float and 0.0 <= within <= 1.0:  # not by a call: so a web response is settled
        return monotonic() + within
    return monotonic() + check_seconds(within, "within", least=0.0)
