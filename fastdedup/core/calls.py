"""Asking for a key: `ClaimCall` is what `dedup.claim()` returns; awaited, it becomes a `Claim`."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator
from time import perf_counter
from types import TracebackType
from typing import Any, Final, NoReturn

from ..claim import Claim
from ..downstream import enter, leave
from ..errors import UnavailableError, UsageError
from ..kernel.operations import ClaimOp, Verdict
from ..kernel.owners import owner_field
from ..kernel.terms import Mode
from ..keys import Fingerprint, digest
from ..model import Outcome
from .counters import outcome_of
from .gate import Gate
from .options import PLAIN, ClaimOptions
from .renewal import Renewal
from .renewed import RenewedSettlement
from .settlement import Settlement
from .tracing import Tracing
from .waiting import wait_for_verdict

_ACQUIRED: Final = Outcome.ACQUIRED  # naming an enum's member through its class costs 50 ns on Python 3.11
_SUCCEEDED: Final = Outcome.SUCCEEDED
_IN_PROGRESS: Final = Outcome.IN_PROGRESS
_CLAIM: Final = Mode.CLAIM
_OVER: Final = object()
Then = Callable[["Claim"], Awaitable["Claim"]]
"""Called with a claim that was made; what it returns is the caller's."""


class ClaimCall(Coroutine[Any, Any, "Claim"]):
    """A claim not yet made: `await` it for a `Claim`, or `async with` it to have it settled.

    Nothing is sent before. It is a coroutine to `asyncio.create_task`, `gather` and `TaskGroup`, without costing one;
    like a coroutine it warns if it was never awaited.

    Args:
        gate: of the claim.
        op: what to ask for.
        wait: seconds to wait for another owner, checked.
        renew: keep the lease alive.
        then: called with the claim, and awaited for what the caller gets.
        verb: what users call it: claim, lock, redeem or consume.

    Attributes:
        op: what to ask for.
        wait: seconds to wait for another owner.
        will_wait: True if its caller waits for an owner that it meets: that is no answer yet, and is not counted.
        owns_renewal: True if its caller ends the renewal of the claim in any case, by settling, `Settlement.leave` or
            `unguard`. Then the renewal may hold the claim's life itself, and not weakly, and no call of its methods
            goes by name.
    """

    __slots__ = (
        "_entered",
        "_gate",
        "_generator",
        "_renews",
        "_since",
        "_span",
        "_task",
        "_then",
        "_used",
        "_verb",
        "_work",
        "op",
        "owns_renewal",
        "wait",
        "will_wait",
    )
    __name__ = "ClaimCall"  # shown for a task that runs one

    _task: object
    """The task that runs it."""
    _span: object
    """The span of the work under it, if it is traced."""
    _work: Any
    """Within `async with`: what ends the work that clients of HTTP ask for."""
    _since: float
    """When it began, by time.perf_counter(); set if the gate counts."""

    def __init__(
        self,
        gate: Gate,
        op: ClaimOp,
        wait: float = 0.0,
        renew: bool = False,
        then: Then | None = None,
        verb: str = "claim",
    ) -> None:
        self._used = False
        self._gate = gate
        self.op = op
        self.wait = wait
        self._renews = renew
        self._then = then
        self._verb = verb
        self.will_wait = False
        self.owns_renewal = False

    def __await__(self) -> Generator[Any, Any, Claim]:
        """The main path: `_made`, within a span if it is traced."""
        if self._then is not None:
            return self._followed(self._then).__await__()
        observers = self._gate.observers
        tracing = observers.tracing
        if tracing is not None and observers.wants_span():
            return self._traced(tracing).__await__()
        return self._made()

    async def _followed(self, then: Then) -> Claim:
        self._then = None
        return await then(await self)

    async def _traced(self, tracing: Tracing) -> Claim:
        gate, op = self._gate, self.op
        part = gate.connection.part_of(op.wire).decode()
        span = tracing.claiming(gate.settings.namespace, self._verb, op.key, part)
        if not self._used:
            note_trace(gate, op, tracing.trace_of(span))
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
            raise self.used_before()
        self._used = True
        gate, op = self._gate, self.op
        counters = gate.observers.counters
        if counters is not None:
            self._since = perf_counter()
        if self.wait > 0.0 or op.terms.consumes:
            return (yield from self._claim_slowly().__await__())
        try:
            reply = yield from gate.begin_claim(op)
        except UnavailableError as error:
            return claim_of(gate, op, self._judged(error), self._renews, owned=self.owns_renewal)
        except asyncio.CancelledError:
            gate.abandon(op)
            raise
        if type(reply) is not Verdict or reply.underreplicated:
            reply = self._judged(reply)
        elif reply.outcome is _SUCCEEDED and op.terms.redeems and not reply.payload:
            reply = yield from self._until_use_stays(reply).__await__()
        elif counters is not None and not (reply.outcome is _IN_PROGRESS and self.will_wait):
            if self._verb == "claim":
                counters.judged(gate, reply, self._since)
            else:
                took = perf_counter() - self._since
                counters.observe(gate.settings.namespace, self._verb, reply.outcome, took)
        if reply.outcome is _ACQUIRED and not self._renews:
            return Claim(gate, op, reply)
        return claim_of(gate, op, reply, self._renews, owned=self.owns_renewal)

    def used_before(self) -> UsageError:
        """Return the error for a second `await`."""
        return UsageError(f"this claim of {self.op.key!r} was awaited before; call claim() for another one")

    def _judged(self, answer: Any) -> Verdict:
        """Return the verdict on an answer that is none yet; count it."""
        gate, op = self._gate, self.op
        try:
            verdict = gate.claim_verdict(op, answer)
        except Exception as fault:
            self._count(fault)
            raise
        self._count(verdict)
        return verdict

    async def _claim_slowly(self) -> Claim:
        """Wait for another owner, or use a token up: see `Gate.use`."""
        gate, op = self._gate, self.op
        waits = self.wait > 0.0
        verdict = await self._counted(wait_for_verdict(gate, op, self.wait) if waits else gate.use(op))
        return claim_of(gate, op, verdict, self._renews, owned=self.owns_renewal)

    async def _until_use_stays(self, verdict: Verdict) -> Verdict:
        """Return the verdict on a token that was found used: see `Gate.until_use_stays`."""
        return await self._counted(self._gate.until_use_stays(self.op, verdict))

    async def _counted(self, work: Coroutine[Any, Any, Verdict]) -> Verdict:
        """Return the verdict that `work` brings; count it."""
        try:
            verdict = await work
        except Exception as fault:
            self._count(fault)
            raise
        self._count(verdict)
        return verdict

    def _count(self, answer: Any) -> None:
        if hasattr(self, "_since"):
            count_claim(self._gate, self._verb, answer, self._since, will_wait=self.will_wait)

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
                f"the claim of {self.op.key!r} was never awaited", RuntimeWarning, stacklevel=1, source=self
            )

    async def __aenter__(self) -> Claim:
        self._entered = claim = await self
        if not claim.acquired:
            return claim
        claim.settlement.guard(asyncio.current_task())
        tracing = self._gate.observers.tracing
        if tracing is not None:
            self._span = tracing.working(claim)
        self._work = enter(claim.settlement.store_key)
        return claim

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._entered.acquired:
            return
        settlement = self._entered.settlement
        if hasattr(self, "_span") and self._span is not None:
            tracing = self._gate.observers.tracing
            assert tracing is not None
            tracing.worked(self._span, settlement.fault if error is None else error)
        leave(self._work)
        await settlement.leave(error)

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
        self._used = True  # also if that has not begun, and never will
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
                f"this claim of {self.op.key!r} runs in a task already; call claim() for another one"
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

    __slots__ = ("_claim", "verdict")

    def __init__(self, gate: Gate, op: ClaimOp, claim: Claim, verdict: Verdict) -> None:
        super().__init__(gate, op)
        self._used = True
        self._claim = claim
        self.verdict = verdict
        """The store's answer."""

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
    """Let the record of a claim that is not sent yet say in which trace it was made, if there is one.

    A caller's own owner stays as it is, and so does a token's.
    """
    if trace and not op.named and op.terms.mode is _CLAIM:
        op.draw_again(gate.draw_traced(trace))


def claim_of(gate: Gate, op: ClaimOp, verdict: Verdict, renew: bool = False, *, owned: bool = False) -> Claim:
    """Return the claim for a verdict; its lease is kept alive if that was asked for.

    `owned`: see `ClaimCall.owns_renewal`.
    """
    outcome = verdict.outcome
    if renew and outcome is _ACQUIRED:
        return renewed_claim(gate, op, verdict, owned=owned)
    claim = Claim(gate, op, verdict)
    if outcome is _SUCCEEDED and (age := gate.recent_for(op, verdict)) > 0.0:
        gate.learn(op, KnownCall(gate, op, claim, verdict), verdict, age)
    return claim


def count_claim(gate: Gate, verb: str, answer: Any, since: float, *, will_wait: bool = False) -> None:
    """Count the verdict on a claim, or the error in its place, if the gate counts.

    `verb`: what users call it. `since`: when it began, by time.perf_counter(). `will_wait`: see `ClaimCall`.
    """
    counters, outcome = gate.observers.counters, outcome_of(answer)
    if counters is not None and not (will_wait and outcome is _IN_PROGRESS):
        counters.observe(gate.settings.namespace, verb, outcome, perf_counter() - since)


def renewed_claim(gate: Gate, op: ClaimOp, verdict: Verdict, *, owned: bool) -> Claim:
    """Return a claim whose lease is kept alive until it is settled."""
    lease = op.terms.lease_ms / 1000
    queue = gate.connection.renewals.of(lease)
    # Counted from when it was sent: from then on the store's clock may have run. The policy's own from now.
    began = op.at if not verdict.degraded and hasattr(op, "at") else queue.loop.time()
    settlement = Settlement(gate, op, verdict) if owned else RenewedSettlement(gate, op, verdict)
    settlement.renewal = Renewal(settlement, lease, queue, began, owned=owned)
    return Claim(gate, op, verdict, settlement)


def one_error(kind: Any, value: Any = None, traceback: Any = None) -> BaseException:
    """Return what a coroutine's `throw` was given as one exception; Python 3.12 warns of its older forms."""
    if isinstance(kind, BaseException):
        error = kind
    elif isinstance(value, BaseException):
        error = value
    else:
        error = kind() if value is None else kind(value)
    return error if traceback is None else error.with_traceback(traceback)


def claim_op(
    gate: Gate, options: ClaimOptions, key: Any, wire: bytes, mark: bytes | None, mode: Mode = Mode.CLAIM
) -> ClaimOp:
    """Return the operation of a claim: what its caller said is checked here.

    Args:
        gate: of the claim.
        options: how to claim it.
        key: the key, as the claim shows it.
        wire: the key in the store.
        mark: its fingerprint, or None.
        mode: claim, redeem or consume.

    Raises:
        InvalidKeyError: the owner cannot be used.
        ConfigError: a time is not valid.
    """
    plain = options is PLAIN and mode is _CLAIM
    named = None if plain else options.owner
    if named is not None:
        owner = owner_field(named)
    else:
        try:
            owner = gate.next_drawn()
        except IndexError:
            owner = gate.draw_owner()
    op = ClaimOp(wire, gate.claim_terms if plain else gate.terms_of(options, mode), owner, mark)
    op.key = key
    op.named = named is not None
    return op


def key_call(
    gate: Gate, options: ClaimOptions, key: Any, fingerprint: Any = None, then: Then | None = None
) -> ClaimCall:
    """Return a claim to be awaited, which no ledger remembers. Arguments and errors as for `Dedup.claim`.

    `then`: what follows it; `resolve` of the options is not looked at.
    """
    mark = fingerprint if fingerprint is None or type(fingerprint) is Fingerprint else digest(fingerprint)
    seconds, renews = 0.0, False
    if options is not PLAIN:
        seconds, renews = options.seconds_to_wait, bool(options.renew)
    if gate.recent:  # empty but in a storm
        known: KnownCall | None = gate.known_success(options, key, mark)
        if known is not None:
            if (counters := gate.observers.counters) is not None:
                counters.observe(gate.settings.namespace, "claim", "succeeded", 0.0)
            return known
    op = claim_op(gate, options, key, gate.claims.wire(key), mark)
    return ClaimCall(gate, op, seconds, renews, then)
