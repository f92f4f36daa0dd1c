"""Asking for a key: `ClaimCall` is what `dedup.claim()` returns; awaited, it becomes a `Claim`."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Coroutine, Generator
from time import perf_counter
from types import TracebackType
from typing import Any, Final, NoReturn

from ..checks import check_seconds
from ..claim import Claim
from ..downstream import enter, leave
from ..errors import UnavailableError, UsageError
from ..kernel.operations import ClaimOp, Mode, Terms, Verdict, with_fingerprint
from ..model import Outcome
from .counters import outcome_of
from .gate import Gate
from .renewal import Renewal
from .renewed import RenewedClaim
from .tracing import Tracing
from .waiting import wait_for_verdict

_ACQUIRED: Final = Outcome.ACQUIRED  # naming an enum's member through its class costs 50 ns on Python 3.11
_SUCCEEDED: Final = Outcome.SUCCEEDED
_IN_PROGRESS: Final = Outcome.IN_PROGRESS
_CLAIM: Final = Mode.CLAIM
_OVER: Final = object()


class ClaimCall(ClaimOp, Coroutine[Any, Any, "Claim"]):
    """A claim not yet made: `await` it for a `Claim`, or `async with` it to have it settled.

    Nothing is sent before. It is a coroutine to `asyncio.create_task`, `gather` and `TaskGroup`,
    without costing one; like a coroutine it warns where it was never awaited.
    """

    __slots__ = (
        "_entered",
        "_gate",
        "_generator",
        "_span",
        "_task",
        "_used",
        "_work",
        "fault",
        "goes_on",
        "patient",
        "renew",
        "since",
        "tied",
        "wait",
    )
    __name__ = "ClaimCall"  # shown for a task that runs one

    _task: object
    """The task that runs it."""
    _span: object
    """The span of the work under it, where somebody traces."""
    _work: Any
    """Within `async with`: what ends the work that clients of HTTP ask for."""
    wait: float
    renew: bool
    fault: BaseException
    """What the body has raised and its caller has caught, for the span; set where that is so."""
    goes_on: bool
    """Set, and True, where its caller waits for an owner that it meets: that is no answer yet, and is not counted."""
    tied: bool
    """True where its caller ends the renewal of the claim in any case, by settling, `_leave` or `_unbind`: then the
    renewal may hold the claim itself, and not weakly, and no call of the claim's methods goes by name."""
    since: float
    """When it began, by time.perf_counter(); set where the gate counts."""

    def __init__(
        self,
        gate: Gate,
        key: str,
        wire: bytes,
        terms: Terms,
        owner: bytes,
        fingerprint: bytes | None,
    ) -> None:
        # Not by ClaimOp.__init__: a call less, see Engine.claim.
        self._used = False
        self.wire = wire
        self.terms = terms
        self.owner = owner
        self.fingerprint = fingerprint
        self.tail = owner if fingerprint is None else with_fingerprint(owner, fingerprint)
        self.followers = None
        self.named = False
        self._gate = gate
        self.key = key
        self.patient = False
        """True where it waits or renews its lease; then `wait` and `renew` are set."""

    def set_patience(self, wait: Any, renew: Any) -> None:
        """Set how long to wait, in seconds, and whether to renew; apart, as most claims do neither."""
        try:
            # Not by a call where it is the default.
            self.wait = 0.0 if type(wait) is float and wait == 0.0 else check_seconds(wait, "wait", least=0.0)
        except BaseException:
            self._used = True  # it never got to its caller, who could await it
            raise
        self.renew = bool(renew)
        self.patient = True

    def __await__(self) -> Generator[Any, Any, Claim]:
        """The main path: `_made`, within a span where somebody traces."""
        watchers = self._gate.watchers
        tracing = watchers.tracing
        if tracing is not None and watchers.wants_span():
            return self._traced(tracing).__await__()
        return self._made()

    async def _traced(self, tracing: Tracing) -> Claim:
        gate = self._gate
        part = gate.connection.part_of(self.wire).decode()
        verb = gate.verb_of(self)
        span = tracing.claiming(gate.settings.namespace, verb, self.key, part)
        if not self._used:
            note_trace(gate, self, tracing.trace_of(span))
        try:
            claim = await Made(self._made())
        except BaseException as error:
            tracing.ended(span, error)
            raise
        tracing.claimed(span, claim)
        return claim

    def _made(self) -> Generator[Any, Any, Claim]:
        """Make the claim. A generator, not a coroutine: nothing but the future stands between task and reply."""
        if self._used:
            raise UsageError(f"this claim of {self.key!r} was awaited before; call claim() for another one")
        self._used = True
        gate = self._gate
        counters = gate.watchers.counters
        if counters is not None:
            self.since = perf_counter()
        if self.patient and self.wait > 0.0:
            return (yield from self._claim_patiently().__await__())
        if self.terms.consumes:
            return claim_of(gate, self, (yield from self._use().__await__()))
        ask = gate
        try:
            reply = yield from ask.begin_claim(self)
        except UnavailableError as error:
            return claim_of(gate, self, self._judged(error), self._renews)
        except asyncio.CancelledError:
            ask.abandon(self)
            raise
        if type(reply) is not Verdict or reply.short:
            reply = self._judged(reply)
        elif reply.outcome is _SUCCEEDED and self.terms.redeems and not reply.payload:
            reply = yield from self._until_use_stays(reply).__await__()
        elif counters is not None and not (reply.outcome is _IN_PROGRESS and self._is_no_answer(reply)):
            if self.patient or not self.terms.shared:
                counters.observe(
                    gate.settings.namespace,
                    gate.verb_of(self),
                    reply.outcome,
                    perf_counter() - self.since,
                )
            else:
                counters.judged(gate, reply, self.since)
        if reply.outcome is _ACQUIRED and not self.patient:
            return Claim(self._gate, self, reply)
        return claim_of(self._gate, self, reply, self._renews)

    def _judged(self, answer: Any) -> Verdict:
        """Return the verdict on an answer that is none yet; count it."""
        gate = self._gate
        try:
            verdict = gate.claim_verdict(self, answer)
        except Exception as fault:
            count_claim(gate, self, fault, self)
            raise
        count_claim(gate, self, verdict, self)
        return verdict

    async def _use(self) -> Verdict:
        """Use a token up: see `Gate.use`; count what came of it."""
        return await self._counted(self._gate.use(self))

    async def _until_use_stays(self, verdict: Verdict) -> Verdict:
        """Return the verdict on a token that was found used: see `Gate.until_use_stays`; count what came of it."""
        return await self._counted(self._gate.until_use_stays(self, verdict))

    async def _counted(self, use: Coroutine[Any, Any, Verdict]) -> Verdict:
        try:
            verdict = await use
        except Exception as fault:
            count_claim(self._gate, self, fault, self)
            raise
        count_claim(self._gate, self, verdict, self)
        return verdict

    def _is_no_answer(self, answer: Any) -> bool:
        """True where the caller goes on to wait: see `goes_on`."""
        return hasattr(self, "goes_on") and self.goes_on and outcome_of(answer) is _IN_PROGRESS

    @property
    def _renews(self) -> bool:
        return self.patient and self.renew

    async def _claim_patiently(self) -> Claim:
        try:
            verdict = await wait_for_verdict(self._gate, self, self.wait)
        except Exception as fault:
            count_claim(self._gate, self, fault, self)
            raise
        count_claim(self._gate, self, verdict, self)
        return claim_of(self._gate, self, verdict, self.renew)

    def __bool__(self) -> bool:
        self._used = True
        raise TypeError(
            "a claim that is not awaited has no truth value: write `claim = await dedup.claim(key)`, "
            "then ask claim.acquired"
        )

    # What only the claim has: touched on the call, it says what is missing

    @property
    def acquired(self) -> NoReturn:
        """Not before it is awaited."""
        self._not_made("acquired")

    @property
    def outcome(self) -> NoReturn:
        """Not before it is awaited."""
        self._not_made("outcome")

    @property
    def result(self) -> NoReturn:
        """Not before it is awaited."""
        self._not_made("result")

    @property
    def replay(self) -> NoReturn:
        """Not before it is awaited."""
        self._not_made("replay")

    @property
    def complete(self) -> NoReturn:
        """Not before it is awaited."""
        self._not_made("complete")

    def _not_made(self, name: str) -> NoReturn:
        raise AttributeError(
            f"this claim is not made yet, so it has no {name!r}: "
            "write `claim = await dedup.claim(key)` or `async with dedup.claim(key) as claim:`"
        )

    def __del__(self) -> None:
        if not self._used:
            warnings.warn(
                f"the claim of {self.key!r} was never awaited", RuntimeWarning, stacklevel=1, source=self
            )

    async def __aenter__(self) -> Claim:
        self._entered = claim = await self
        claim._bind_body(asyncio.current_task())
        tracing = self._gate.watchers.tracing
        if tracing is not None and claim.acquired:
            self._span = tracing.working(claim)
        if claim.acquired:
            self._work = enter(claim._base_wire)
        return claim

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if hasattr(self, "_span") and self._span is not None:
            tracing = self._gate.watchers.tracing
            assert tracing is not None
            tracing.worked(self._span, self.fault if error is None and hasattr(self, "fault") else error)
        if hasattr(self, "_work"):
            leave(self._work)
        await self._entered._leave(error)

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
        self._used = True  # also where that has not begun, and never will
        try:
            return generator.throw(one_error(*error))
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
        self._used = True
        if hasattr(self, "_generator"):
            self._generator.close()


class Made:
    """A claim that is being made, to be awaited."""

    __slots__ = ("_generator",)

    def __init__(self, generator: Generator[Any, Any, Claim]) -> None:
        self._generator = generator

    def __await__(self) -> Generator[Any, Any, Claim]:
        return self._generator


class KnownCall(ClaimCall):
    """A claim whose answer is known, and shared by all who ask: see `core/recent.py`."""

    __slots__ = ("_claim",)

    def __init__(self, claim: Claim) -> None:
        self._used = True
        self.patient = False
        self._claim = claim

    @property
    def verdict(self) -> Verdict:
        """The store's answer."""
        return self._claim._verdict

    def __await__(self) -> Generator[Any, Any, Claim]:
        yield from ()  # makes this a generator, the cheapest iterator that can return a value
        return self._claim

    def send(self, value: Any) -> Any:
        """Answer."""
        raise StopIteration(self._claim)

    def throw(self, *error: Any) -> Any:
        """Raise what is thrown: nothing is under way that could be cancelled."""
        raise one_error(*error)

    def close(self) -> None:
        """Give up: there is nothing to give up."""

    async def __aenter__(self) -> Claim:
        return self._claim

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Settle nothing: it was settled before."""


def note_trace(gate: Gate, op: ClaimOp, trace: bytes) -> None:
    """Let the record of a claim that is not sent yet say in which trace it was made, where there is one.

    A caller's own owner stays as it is, and so does a token's.
    """
    if trace and not op.named and op.terms.mode is _CLAIM:
        op.draw_again(gate.draw_traced(trace))


def claim_of(gate: Gate, op: ClaimOp, verdict: Verdict, renew: bool = False) -> Claim:
    """Return the claim for a verdict; its lease is kept alive where that was asked for."""
    outcome = verdict.outcome
    if renew and outcome is _ACQUIRED:
        return renewed_claim(gate, op, verdict)
    claim = Claim(gate, op, verdict)
    if outcome is _SUCCEEDED and (age := gate.recent_for(op, verdict)) > 0.0:
        gate.learn(op, KnownCall(claim), verdict, age)
    return claim


def count_claim(gate: Gate, op: ClaimOp, answer: Any, call: ClaimCall) -> None:
    """Count the verdict on a claim, or the error in its place, where somebody wants to know."""
    counters = gate.watchers.counters
    if counters is not None and hasattr(call, "since") and not call._is_no_answer(answer):
        took = perf_counter() - call.since
        counters.observe(gate.settings.namespace, gate.verb_of(op), outcome_of(answer), took)


def renewed_claim(gate: Gate, op: ClaimOp, verdict: Verdict) -> Claim:
    """Return a claim whose lease is kept alive until it is settled."""
    lease = op.terms.lease_ms / 1000
    queue = gate.connection.renewals(lease)
    # Counted from when it was sent: from then on the store's clock may have run. The policy's own from now.
    began = op.at if not verdict.degraded and hasattr(op, "at") else queue.loop.time()
    if isinstance(op, ClaimCall) and hasattr(op, "tied") and op.tied:
        tied = Claim(gate, op, verdict)
        tied._renewal = Renewal(tied, lease, queue, began, tied=True)
        return tied
    claim = RenewedClaim(gate, op, verdict)
    claim._renewed_by(Renewal(claim, lease, queue, began))
    return claim


def one_error(kind: Any, value: Any = None, traceback: Any = None) -> BaseException:
    """Return what a coroutine's `throw` was given as one exception; Python 3.12 warns of its older forms."""
    if isinstance(kind, BaseException):
        error = kind
    elif isinstance(value, BaseException):
        error = value
    else:
        error = kind() if value is None else kind(value)
    return error if traceback is None else error.with_traceback(traceback)
