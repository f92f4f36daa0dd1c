"""Asking for a key: `ClaimCall` is what `dedup.claim()` returns; awaited, it becomes a `Claim`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..checks import check_seconds
from ..claim import Claim
from ..errors import DedupError, ShortfallError, UnavailableError, UsageError, foreign
from ..gate.renewal import RenewedClaim
from ..model import Outcome
from ..protocol.operations import ClaimOp, Reply, Terms, Verdict, with_fingerprint

if TYPE_CHECKING:
    from ..gate.namespace import Scope

_ACQUIRED = Outcome.ACQUIRED  # naming an enum's member through its class costs 50 ns on Python 3.11
_SUCCEEDED = Outcome.SUCCEEDED
_OVER = object()


class ClaimCall(ClaimOp, Coroutine[Any, Any, "Claim"]):
    """A claim not yet made: `await` it for a `Claim`, or `async with` it to have it settled.

    Nothing is sent before. It is a coroutine to `asyncio.create_task`, `gather` and `TaskGroup`,
    without costing one.
    """

    __slots__ = ("_entered", "_generator", "_scope", "_task", "_used", "renew", "wait")
    __name__ = "ClaimCall"  # shown for a task that runs one

    _task: object
    """That which runs it."""

    def __init__(
        self,
        scope: Scope,
        key: str,
        wire: bytes,
        terms: Terms,
        owner: bytes,
        fingerprint: bytes | None,
    ) -> None:
        # Not by ClaimOp.__init__: a call less, see Engine.claim.
        self.wire = wire
        self.terms = terms
        self.owner = owner
        self.fingerprint = fingerprint
        self.tail = owner if fingerprint is None else with_fingerprint(owner, fingerprint)
        self.followers = None
        self.named = False
        self._scope = scope
        self.key = key
        self.wait = 0.0
        self.renew = False
        self._used = False

    def set_patience(self, wait: Any, renew: Any) -> None:
        """Set how long to wait, in seconds, and whether to renew; apart, as most claims do neither."""
        self.wait = check_seconds(wait, "wait", least=0.0)
        self.renew = bool(renew)

    def __await__(self) -> Generator[Any, Any, Claim]:
        """The main path. A generator, not a coroutine: nothing but the future stands between task and reply."""
        if self._used:
            raise UsageError(f"this claim of {self.key!r} was awaited before; call claim() for another one")
        self._used = True
        scope = self._scope
        if self.wait > 0.0:
            patient = scope.claim_patiently(self)
            return self._answered((yield from patient.__await__()))
        try:
            reply = yield from scope.start_claim(self)
            if type(reply) is not Verdict:
                raise odd_reply(reply, self.key)
        except UnavailableError as error:
            reply = verdict_of(scope.fall_back(self, error), self.key)
        except asyncio.CancelledError:
            scope.disown(self)
            raise
        return self._answered(reply)

    def _answered(self, reply: Verdict) -> Claim:
        claim = RenewedClaim(self._scope, self, reply) if self.renew else Claim(self._scope, self, reply)
        if reply.outcome is _ACQUIRED:
            if reply.short:
                self._check_confirmed(claim)
            if self.renew and isinstance(claim, RenewedClaim):
                claim.keep_renewing()
        elif reply.outcome is _SUCCEEDED:
            self._scope.learn(claim, self, reply)
        return claim

    def _check_confirmed(self, claim: Claim) -> None:
        try:
            self._scope.fell_short(self)
        except ShortfallError:
            if claim.first_hand and not self.terms.consumes:
                self._scope.keep(claim.release())  # nobody is told that it is theirs
            raise

    async def __aenter__(self) -> Claim:
        self._entered = claim = await self
        claim.bind_body(asyncio.current_task())
        return claim

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._entered.leave(error)

    # The rest of a coroutine's interface, for create_task.

    def send(self, value: Any) -> Any:
        """Advance; asyncio's tasks call this."""
        generator = self._started()
        try:
            return generator.send(value)
        except BaseException:
            self._task = _OVER  # a generator that has ended would answer None, which is no claim
            raise

    def throw(self, *error: Any) -> Any:
        """Raise inside; asyncio's tasks call this to cancel."""
        generator = self._started()
        try:
            return generator.throw(*error)
        except BaseException:
            self._task = _OVER
            raise

    def _started(self) -> Generator[Any, Any, Claim]:
        task = asyncio.current_task()
        if not hasattr(self, "_generator"):
            self._generator = self.__await__()
            self._task = task
        elif self._task is not task:
            raise RuntimeError(
                f"this claim of {self.key!r} runs in a task already; call claim() for another one"
            )
        return self._generator

    def close(self) -> None:
        """Give up."""
        if hasattr(self, "_generator"):
            self._generator.close()


class KnownCall(ClaimCall):
    """A claim whose answer is known, and shared by all who ask: see `known.py`."""

    __slots__ = ("_claim", "mark", "size", "until")

    def __init__(self, claim: Claim, until: float, fingerprint: bytes | None, size: int) -> None:
        self._claim = claim
        self.mark = fingerprint
        self.until = until
        """When it must be asked anew, by time.monotonic()."""
        self.size = size

    def __await__(self) -> Generator[Any, Any, Claim]:
        yield from ()  # makes this a generator, the cheapest iterator that can return a value
        return self._claim

    def send(self, value: Any) -> Any:
        """Answer."""
        raise StopIteration(self._claim)

    def throw(self, *error: Any) -> Any:
        """Nothing is under way that could be cancelled."""
        raise error[0]

    def close(self) -> None:
        """Nothing to give up."""

    async def __aenter__(self) -> Claim:
        return self._claim

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing to settle."""


def verdict_of(reply: Reply, key: str) -> Verdict:
    """Return the verdict on a claim, or raise what the reply is instead."""
    if type(reply) is not Verdict:
        raise odd_reply(reply, key)
    return reply


def odd_reply(reply: Reply, key: str) -> DedupError:
    """The error for a reply to a claim that is no verdict."""
    return reply if isinstance(reply, UnavailableError) else foreign(key)
