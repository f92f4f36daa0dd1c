"""Asking for a key: `dedup.claim()` returns a `ClaimCall`; if it is awaited, it becomes a `Claim`."""

from __future__ import annotations

import asyncio
import warnings
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator
from time import perf_counter
from types import TracebackType
from typing import Any, Final, NoReturn

from ..claim import Claim
from ..downstream import enter, leave
from ..errors import UnavailableError, UsageError
from ..kernel.operations import ClaimOp, Verdict
from ..kernel.owners import draw_traced
from ..kernel.terms import Mode
from ..keys import Fingerprint
from ..keys import fingerprint as digest
from ..model import Outcome
from ..results.declared import R, reader_for
from .counters import outcome_of
from .gate import Gate
from .options import PLAIN, ClaimOptions
from .renewed import RenewedSettlement
from .settlement import Settlement
from .waiting import wait_for_verdict

_ACQUIRED: Final = Outcome.ACQUIRED  # naming an enum's member through its class costs 50 ns on Python 3.11
_SUCCEEDED: Final = Outcome.SUCCEEDED
_IN_PROGRESS: Final = Outcome.IN_PROGRESS
_CLAIM: Final = Mode.CLAIM
_OVER: Final = object()
Then = Callable[["Claim"], Awaitable["Claim"]]
"""Called with a claim that was made; the caller gets its result."""


class ClaimCall(Coroutine[Any, Any, Claim[R]]):
    """A claim that is not made yet: `await` it for a `Claim`, or `async with` it to have it settled.

    Nothing is sent before. `asyncio.create_task`, `gather` and `TaskGroup` accept it as a coroutine, but it costs
    less than one; like a coroutine it warns if it was never awaited.

    Args:
        gate: the claim's gate.
        op: the operation to send.
        wait: seconds to wait for another owner, checked.
        renew: keep the lease alive; None: as long as a body runs under the claim.
        then: called with the claim, and awaited for the caller's result.
        verb: the users' name for it: claim, lock, redeem or consume.

    Attributes:
        op: the operation to send.
        wait: seconds to wait for another owner.
        will_wait: True if its caller waits for an owner that it meets: that is not an answer yet, and is not counted.
        owns_renewal: True if its caller ends the renewal of the claim in any case, by settling, `Settlement.leave` or
            `unguard`. Then the renewal may hold the claim's life with a strong reference, and no call of its
            methods goes by name.
        renews: whether the lease is kept alive; None: as long as a body runs under the claim.
    """

    __slots__ = (
        "_entered",
        "_gate",
        "_generator",
        "_has_span",
        "_since",
        "_span",
        "_task",
        "_then",
        "_used",
        "_verb",
        "_work",
        "op",
        "owns_renewal",
        "renews",
        "wait",
        "will_wait",
    )
    __name__ = "ClaimCall"  # the name of a task that runs one

    _task: object
    """The task that runs it."""
    _span: object
    """The span of the work under it, if it is traced."""
    _work: Any
    """Within `async with`: the object that ends the work for HTTP clients."""
    _since: float
    """The time of its beginning by time.perf_counter(); set if the gate counts."""

    def __init__(
        self,
        gate: Gate,
        op: ClaimOp,
        wait: float = 0.0,
        renew: bool | None = None,
        then: Then | None = None,
        verb: str = "claim",
    ) -> None:
        self._used = self._has_span = False
        self._gate = gate
        self.op = op
        self.wait = wait
        self.renews = renew
        self._then = then
        self._verb = verb
        self.will_wait = False
        self.owns_renewal = False

    def __await__(self) -> Generator[Any, Any, Claim[R]]:
        """Make the claim: the main path.

        A generator, not a coroutine, so that only the future is between task and reply.
        """
        observers = self._gate.observers
        if self._then is not None or (observers.tracing is not None and self.wants_span()):
            return (yield from self.surrounded().__await__())
        if self._used:
            raise self.used_before()
        self._used = True
        gate, op = self._gate, self.op
        counters = observers.counters
        if counters is not None:
            self._since = perf_counter()
        if self.wait > 0.0 or op.terms.consumes:
            return (yield from self._claim_slowly().__await__())
        try:
            reply = yield from gate.begin_claim(op)
        except UnavailableError as error:
            return claim_of(gate, op, self._judged(error), self.renews, owned=self.owns_renewal)
        except asyncio.CancelledError:
            gate.abandon(op)
            raise
        if type(reply) is not Verdict or reply.underreplicated:
            reply = self._judged(reply)
        elif reply.outcome is _SUCCEEDED and op.terms.redeems and not reply.payload:
            reply = yield from self._counted(gate.until_use_stays(op, reply)).__await__()
        elif counters is not None and not (reply.outcome is _IN_PROGRESS and self.will_wait):
            if self._verb == "claim":
                counters.judged(gate, reply, self._since)
            else:
                took = perf_counter() - self._since
                counters.observe(gate.settings.namespace, self._verb, reply.outcome, took)
        if reply.outcome is _ACQUIRED and not self.renews:
            return Claim(gate, op, reply)
        return claim_of(gate, op, reply, self.renews, owned=self.owns_renewal)

    def wants_span(self) -> bool:
        """True if it is to be made within a span that is not begun yet."""
        return not self._has_span and self._gate.observers.wants_span()

    async def surrounded(self) -> Claim[R]:
        """Make the claim within its span, if it is traced, and call what comes after it."""
        then, self._then = self._then, None
        if then is not None:
            # While `then` runs; it ends that, unless the caller asked for it.
            renews, self.renews = self.renews, True
            claim = await self
            self.renews = renews
            return await then(claim)
        gate, op, tracing = self._gate, self.op, self._gate.observers.tracing
        assert tracing is not None
        self._has_span = True
        part = gate.connection.part_of(op.wire).decode()
        span = tracing.claiming(gate.settings.namespace, self._verb, op.key, part)
        if not self._used:
            note_trace(op, tracing.trace_of(span))
        try:
            claim = await self
        except BaseException as error:
            tracing.ended(span, error)
            raise
        tracing.claimed(span, claim)
        return claim

    def used_before(self) -> UsageError:
        """Return the error for a second `await`."""
        return UsageError(f"this {self._name} was awaited before; call {self._verb}() for another one")

    @property
    def _name(self) -> str:
        return f"{'lock' if self._verb == 'lock' else 'claim of'} {self.op.key!r}"

    def _judged(self, answer: Any) -> Verdict:
        """Return the verdict on an answer that is not a verdict yet; count it."""
        gate, op = self._gate, self.op
        try:
            verdict = gate.claim_verdict(op, answer)
        except Exception as fault:
            self._count(fault)
            raise
        self._count(verdict)
        return verdict

    async def _claim_slowly(self) -> Claim:
        """Wait for another owner, or use a token: see `Gate.use`."""
        gate, op = self._gate, self.op
        waits = self.wait > 0.0
        verdict = await self._counted(wait_for_verdict(gate, op, self.wait) if waits else gate.use(op))
        return claim_of(gate, op, verdict, self.renews, owned=self.owns_renewal)

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

    # Attributes of the claim: on the call, they raise an error that says what is missing

    @property
    def acquired(self) -> NoReturn:
        """Raise AttributeError: the claim is not awaited yet."""
        self._not_made("acquired")

    @property
    def outcome(self) -> NoReturn:
        """Raise AttributeError: the claim is not awaited yet."""
        self._not_made("outcome")

    @property
    def result(self) -> NoReturn:
        """Raise AttributeError: the claim is not awaited yet."""
        self._not_made("result")

    @property
    def replay(self) -> NoReturn:
        """Raise AttributeError: the claim is not awaited yet."""
        self._not_made("replay")

    @property
    def complete(self) -> NoReturn:
        """Raise AttributeError: the claim is not awaited yet."""
        self._not_made("complete")

    def _not_made(self, name: str) -> NoReturn:
        raise AttributeError(
            f"this claim is not made yet, so it has no {name!r}: "
            "write `claim = await dedup.claim(key)` or `async with dedup.claim(key) as claim:`"
        )

    def __del__(self) -> None:
        if not self._used:
            is_lock = self._verb == "lock"
            missing = "entered: write `async with dedup.lock(key) as lock:`" if is_lock else "awaited"
            warnings.warn(f"the {self._name} was never {missing}", RuntimeWarning, stacklevel=1, source=self)

    async def __aenter__(self) -> Claim[R]:
        self._entered = claim = await self
        if not claim.acquired:
            return claim
        claim.settlement.guard(asyncio.current_task())
        tracing = self._gate.observers.tracing
        if tracing is not None:
            self._span = tracing.working(claim)
        self._work = enter(claim.settlement.store_key)
        if self.renews is None:  # at the end: if an error comes before, no `__aexit__` ends the renewal
            claim.settlement.keep_renewed()
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
            self._task = _OVER  # a generator that has ended would return None, which is not a claim
            raise

    def throw(self, *error: Any) -> Any:
        """Raise inside; asyncio's tasks call this to cancel."""
        generator = self._started()
        self._used = True  # also if the claim has not begun, and never will
        try:
            return generator.throw(one_error(*error))
        except BaseException:
            self._task = _OVER
            raise

    def _started(self) -> Generator[Any, Any, Claim[R]]:
        task = asyncio.current_task()
        if not hasattr(self, "_generator"):
            self._generator = self.__await__()
            self._task = task
        elif self._task is not task:
            raise RuntimeError(
                f"this {self._name} runs in a task already; call {self._verb}() for another one"
            )
        return self._generator

    def close(self) -> None:
        """Stop the claim."""
        self._used = True
        if hasattr(self, "_generator"):
            self._generator.close()


class KnownCall(ClaimCall):
    """A claim whose answer is known, and shared by all callers: see `core/recent.py`."""

    __slots__ = ("_claim", "verdict")

    def __init__(self, gate: Gate, op: ClaimOp, claim: Claim, verdict: Verdict) -> None:
        super().__init__(gate, op)
        self._used = True
        self._claim = claim
        self.verdict = verdict
        """The store's answer."""

    def read_by(self, reader: Any) -> KnownCall:
        """Return the same answer for claims of another declared type. `reader`: see `ClaimOp`."""
        op = self.op.copy()
        op.reader = reader
        return KnownCall(self._gate, op, Claim(self._gate, op, self.verdict), self.verdict)

    def __await__(self) -> Generator[Any, Any, Claim]:
        yield from ()  # makes this a generator, the cheapest iterator that can return a value
        return self._claim

    def send(self, value: Any) -> Any:
        """Raise StopIteration with the answer."""
        raise StopIteration(self._claim)

    def throw(self, *error: Any) -> Any:
        """Raise the error: nothing is under way that could be cancelled."""
        raise one_error(*error)

    def close(self) -> None:
        """Do nothing: nothing is under way."""

    async def __aenter__(self) -> Claim:
        return self._claim

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Settle nothing, because the claim was settled before."""


def note_trace(op: ClaimOp, trace: bytes) -> None:
    """Let the record of a claim that is not sent yet name its trace, if there is one.

    An owner that the caller chose is not changed, nor is a token's.
    """
    if trace and not op.named and op.terms.mode is _CLAIM:
        op.draw_again(draw_traced(op.owner, trace))


def claim_of(
    gate: Gate, op: ClaimOp, verdict: Verdict, renew: bool | None = None, *, owned: bool = False
) -> Claim:
    """Return the claim for a verdict; its lease is kept alive if that was asked for.

    `owned`: see `ClaimCall.owns_renewal`.
    """
    outcome = verdict.outcome
    if renew and outcome is _ACQUIRED:
        return renewed_claim(gate, op, verdict, owned=owned)
    claim = Claim(gate, op, verdict)
    if outcome is _SUCCEEDED and (age := gate.recent_for(op, verdict)) > 0.0:
        known = KnownCall(gate, op, claim, verdict)
        gate.learn(op, known if op.reader is None else known.read_by(None), verdict, age)
    return claim


def count_claim(gate: Gate, verb: str, answer: Any, since: float, *, will_wait: bool = False) -> None:
    """Count the verdict on a claim, or the error in its place, if the gate counts.

    `verb`: the users' name for it. `since`: when it began, by time.perf_counter(). `will_wait`: see `ClaimCall`.
    """
    counters, outcome = gate.observers.counters, outcome_of(answer)
    if counters is not None and not (will_wait and outcome is _IN_PROGRESS):
        counters.observe(gate.settings.namespace, verb, outcome, perf_counter() - since)


def renewed_claim(gate: Gate, op: ClaimOp, verdict: Verdict, *, owned: bool) -> Claim:
    """Return a claim whose lease is kept alive until it is settled."""
    settlement = Settlement(gate, op, verdict) if owned else RenewedSettlement(gate, op, verdict)
    settlement.keep_renewed(None if owned else weakref.ref(settlement))
    return Claim(gate, op, verdict, settlement)


def one_error(kind: Any, value: Any = None, traceback: Any = None) -> BaseException:
    """Return the arguments of a coroutine's `throw` in one exception; Python 3.12 warns of its older forms."""
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
    """Return the operation of a claim; the caller's options are checked here.

    Args:
        gate: the claim's gate.
        options: how to claim it.
        key: the key that the claim shows.
        wire: the key in the store.
        mark: its fingerprint, or None.
        mode: claim, redeem or consume.

    Raises:
        InvalidKeyError: the owner cannot be used.
        ConfigError: a time is not valid, or the declared type of the result cannot come back.
    """
    op = ClaimOp(wire, gate.terms_of(options, mode), gate.owners_of(options)(), mark)
    op.key = key
    op.named = options.owner is not None
    if options.returns is not None:
        op.reader = reader_for(options.returns, gate.settings.codec)
    return op


def key_call(
    gate: Gate, options: ClaimOptions, key: Any, fingerprint: Any = None, then: Then | None = None
) -> ClaimCall:
    """Return a claim to await, which no ledger remembers. Arguments and errors: see `Dedup.claim`.

    `then`: called after it; `resolve` of the options is ignored.
    """
    mark = fingerprint if fingerprint is None or type(fingerprint) is Fingerprint else digest(fingerprint)
    seconds = 0.0 if options is PLAIN else options.seconds_to_wait
    if gate.recent:  # it is empty, except in a storm
        known: KnownCall | None = gate.known_success(options, key, mark)
        if known is not None:
            if options is not PLAIN and options.returns is not None:
                known = known.read_by(reader_for(options.returns, gate.settings.codec))
            if (counters := gate.observers.counters) is not None:
                counters.observe(gate.settings.namespace, "claim", "succeeded", 0.0)
            return known
    wire = gate.claims.wire(key)
    if options is PLAIN:
        try:
            owner = gate.next_drawn()
        except IndexError:
            owner = gate.draw_owner()
        op = ClaimOp(wire, gate.claim_terms, owner, mark)
        op.key = key
        return ClaimCall(gate, op, seconds, None, then)
    op = claim_op(gate, options, key, wire, mark)
    return ClaimCall(gate, op, seconds, options.renews, then)
