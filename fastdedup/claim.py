"""The answer to a claim, and the right to settle it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from time import monotonic
from typing import Any, Protocol

from . import codec
from .answer import Answer
from .checks import milliseconds
from .compiled import mypyc_attr
from .errors import ClaimLostError, DedupError, UnavailableError, UsageError, foreign
from .protocol.operations import Code, Op, ReleaseOp, RenewOp, SettleOp

_LOST = "lost"
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.4
"""Seconds between two tries to settle while the store is unavailable."""


class Body(Protocol):
    """The work under a claim, as far as a lost lease concerns it: an asyncio.Task is one."""

    def cancel(self) -> object:
        """Stop it."""

    def uncancel(self) -> int:
        """Take that back; returns how many others have cancelled it."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Claim(Answer):
    """The answer to a claim, and while `acquired`, the right to settle it.

    Settle it once, with `complete`, `fail` or `release`. Each of these raises ClaimLostError where
    another owner has the key by now (nothing was changed), UnavailableError where the store did not
    answer (call it again: repeating is safe), UsageError on a claim that is not acquired, is
    settled already, or belongs to another event loop. `complete` and `fail` are tried again until the
    lease ends before they give up: the effect has happened, and its result must not be lost to a
    blip. `within` seconds end that sooner.
    """

    __slots__ = ("_body", "_ends", "_stopped_body")
    # What most claims never need is not set for all of them: `bind_body` adds whose body it guards.

    _ends: float
    """When the lease ends, in the loop's time, once somebody has asked or renewed."""

    @property
    def lost(self) -> bool:
        """True once the lease is known to be lost."""
        return self._lost

    async def complete(
        self, result: Any = None, ttl: float | None = None, *, within: float | None = None
    ) -> None:
        """Record success: every duplicate gets `result` for `ttl` seconds (the namespace's by default).

        It is tried for `within` seconds while the store is unavailable; by default until the lease ends.

        Raises:
            ResultError: the codec cannot encode the result.
            ResultTooLargeError: it is larger than `max_result`; the claim stays live.
        """
        await self._finish("completed", self._settle(self._outcome_op(result, ttl, succeeded=True), within))

    async def fail(self, error: Any = None, ttl: float | None = None, *, within: float | None = None) -> None:
        """Record a failure for good: every duplicate gets `error` for `ttl` seconds (`failure_ttl` by default).

        For a failure that a retry may mend, `release` instead. An exception is recorded as its
        type's name and its text. Raises as `complete`.
        """
        if isinstance(error, BaseException):
            error = {"type": type(error).__name__, "message": str(error)}
        await self._finish("failed", self._settle(self._outcome_op(error, ttl, succeeded=False), within))

    async def release(self) -> None:
        """Free the key: nothing happened, the next claimant may try."""
        self._check_live()
        op = ReleaseOp(self._call.wire, self._call.owner, self.fence)
        op.unsure = self._unsure
        try:
            await self._finish("released", self._act(op))
        except UnavailableError:
            self._unsure = True
            raise

    async def renew(self, lease: float | None = None) -> None:
        """Start the lease anew from now: `lease` seconds, as long as the first by default."""
        self._check_live()
        terms = self._call.terms
        lease_ms = terms.lease_ms if lease is None else milliseconds(lease, "lease")
        keep_ms = terms.keep_ms - terms.lease_ms + lease_ms
        ends = asyncio.get_running_loop().time() + lease_ms / 1000
        await self._act(RenewOp(self._call.wire, self._call.owner, self.fence, lease_ms, keep_ms))
        self._ends = ends

    # Settling

    def _outcome_op(self, value: Any, ttl: float | None, *, succeeded: bool) -> SettleOp:
        self._check_live()
        self.settling = True
        settings = self._scope.settings
        if ttl is None:
            # A claim's own ttl is what its terms keep beyond the lease.
            terms = self._call.terms
            keep_ms = terms.keep_ms - terms.lease_ms if succeeded else round(settings.failure_ttl * 1000)
        else:
            keep_ms = milliseconds(ttl, "ttl")
        payload = codec.encode(settings.codec, value, settings.max_result)
        return SettleOp(
            self._call.wire,
            self._call.owner,
            self.fence,
            succeeded=succeeded,
            keep_ms=keep_ms,
            payload=payload,
        )

    def _check_live(self) -> None:
        if not self.acquired:
            raise UsageError(f"this claim is {self.outcome}, not acquired: only its owner settles it")
        if self._settled is _LOST:
            raise self._lost_error()
        if self._settled is not None:
            raise UsageError(f"this claim was {self._settled} already; settle it once")

    async def _finish(self, how: str, settling: Coroutine[Any, Any, None]) -> None:
        self._settled = how
        try:
            await settling
        except ClaimLostError:
            self._settled = _LOST
            raise
        except asyncio.CancelledError:
            # Of a release no more is asked; a result whose recording was given up may be recorded again.
            if self.settling:
                self._settled = None
            raise
        except BaseException:
            self._settled = None
            raise
        finally:
            if self._settled is not None and self._renewal is not None:
                self._renewal.stop()

    async def _settle(self, op: SettleOp, within: float | None) -> None:
        """Until the lease ends: by the claim's own clock, which started before the store's."""
        pause = _FIRST_PAUSE
        began = monotonic()
        while True:
            try:
                return await self._act(op)
            except UnavailableError:
                left = self._lease_left()
                if within is not None:
                    left = min(left, began + within - monotonic())
                if left <= 0:
                    raise
            await asyncio.sleep(min(left, pause * (0.5 + 0.5 * random.random())))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _lease_left(self) -> float:
        now = asyncio.get_running_loop().time()
        if not hasattr(self, "_ends"):
            asked = getattr(self._call, "at", now)  # where the policy answered, nothing was sent
            self._ends = asked + self._verdict.left_ms / 1000
        return self._ends - now

    async def _act(self, op: Op) -> None:
        code = await self._scope.run(op, degraded=self.degraded)
        if code == Code.FOREIGN:
            raise foreign(self.key)
        if code == Code.LOST and isinstance(op, ReleaseOp) and op.unsure and self._lease_left() > 0:
            return  # within its lease nobody takes a key that was not freed: it was, by the first sending
        if code != Code.OK:
            self._lost = True
            raise self._lost_error()

    def _lost_error(self) -> ClaimLostError:
        return ClaimLostError(
            f"{self.key!r} is no longer held by this owner (fence {self.fence}): its lease ended, "
            "or it was settled or forgotten elsewhere; nothing was changed"
        )

    # The `async with` body

    def bind_body(self, body: Body | None) -> None:
        """Remember whom to cancel should the lease be lost."""
        self._body: Body | None = body
        self._stopped_body = False

    def lose(self) -> None:
        """The lease could not be renewed: stop the body before another owner starts."""
        self._lost = True
        self._scope.lease_lost(self)
        body = getattr(self, "_body", None)
        if body is not None:
            self._stopped_body = True
            body.cancel()

    def unbind(self) -> None:
        """The body is over: cancel nobody, and renew no more."""
        self._body = None
        if self._renewal is not None:
            self._renewal.stop()

    async def leave(self, error: BaseException | None, *, release: bool = False) -> None:
        """Settle on the way out of `async with`, shielded from cancellation; see `Dedup.claim`."""
        body = self._body
        self.unbind()
        if not self.acquired:
            return
        if self._stopped_body and body is not None:
            outside = body.uncancel() > 0  # cancelled from outside as well: that goes first
            if not outside and (error is None or isinstance(error, asyncio.CancelledError)):
                raise ClaimLostError(f"the lease of {self.key!r} was lost while its body ran") from None
            return
        if self._settled is not None or (error is not None and self.settling):
            return
        if self._lost:
            if error is None:
                raise self._lost_error()
            return
        # Not tied to this task: cancelling it leaves the settling to finish by itself.
        settling = self._scope.keep(self.complete() if error is None and not release else self.release())
        if error is None:
            await asyncio.shield(settling)
            return
        # The body's own error matters more than that of freeing the key; the lease ends by itself.
        with contextlib.suppress(DedupError):
            await asyncio.shield(settling)
