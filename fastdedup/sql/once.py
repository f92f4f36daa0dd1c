"""`@inbox.once`: the gate absorbs the storm, the inbox decides in the transaction.

What happens after a failure, by the part that failed:

    the gate does not answer       the inbox decides alone (`GateBypassed`); also if its answer cannot be read
    the work, or the transaction   it is rolled back; the gate's claim is released, so that a later delivery is first
    the COMMIT                     its outcome is unknown: the gate's claim is neither completed nor released. Its
                                   lease ends, and the next delivery asks the inbox
    after the COMMIT               the row answers the next delivery, and that completes the gate's claim
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from time import monotonic, perf_counter
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, TypeVar

from ..checks import check_decorated, check_dedup
from ..claim import Claim
from ..claiming import claim_call
from ..core.calls import ClaimCall, claim_of, count_claim
from ..core.gate import Gate
from ..core.options import ClaimOptions
from ..core.settlement import Settlement
from ..core.waiting import end_of, wait_by_looks
from ..downstream import claimed_work
from ..errors import (
    ConfigError,
    DedupError,
    ForeignRecordError,
    ResultError,
    RetryTransaction,
    UnavailableError,
)
from ..events import GateBypassed
from ..gateway import Dedup
from ..keys import Fingerprint
from ..results.declared import Results
from .drivers.base import is_retryable
from .faults import AbortedError
from .local_calls import Answer, CallEnd, LocalCalls, TaskEnd, count_wait
from .open_transaction import CommitUnknown, OnceRules, OpenTransaction, is_committed_perhaps
from .receipt import RowAnswer
from .rules import InboxRules
from .signatures import OnceFunction, arguments_before, hide_transaction

P = ParamSpec("P")
T = TypeVar("T")
Work = Callable[[Any], Coroutine[Any, Any, Any]]
"""Does the work in a transaction; it suspends only in async code."""
Settle = Callable[[Settlement], Coroutine[Any, Any, Any]]
"""Tells the gate the outcome of a claim."""
MENDING: Final = 1.0
"""Seconds to tell the gate of a committed row: the row decides anyway, so the caller does not wait longer."""
RENEWED: Final = ClaimOptions(renew=True)
"""The settings of a claim at the gate for work that runs in a transaction."""
LOOK: Final = 1.0
"""Seconds of each look of a caller that waits at the gate: it notices after at most these that the gate is away."""


UNHEARD: Final = (UnavailableError, ForeignRecordError, ResultError)
"""The gate does not answer, or has a record that cannot be read: the inbox decides alone."""


def bypassed(dedup: Dedup, rules: InboxRules, error: DedupError) -> None:
    """Report that the gate does not answer, or that its answer cannot be read."""
    dedup.gate.connection.report(GateBypassed(dedup.settings.namespace, rules.name, str(error)))


def once(
    rules: OnceRules,
) -> Callable[
    [Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]], OnceFunction[P, Coroutine[Any, Any, T]]
]:
    """Return the decorator; see `Inbox.once`."""
    if rules.gate is not None:
        check_dedup(rules.gate, Dedup, "once(gate=…)")

    def decorate(
        function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
    ) -> OnceFunction[P, Coroutine[Any, Any, T]]:
        check_decorated(function)
        if not inspect.iscoroutinefunction(function):
            raise ConfigError(f"{function!r} is not async: use once() of fastdedup.sync.sql.Inbox")
        call = calls_of(function, function, rules, AtGate)

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> T:
            result: T = await call(args, kwargs)
            return result

        hide_transaction(wrapper)
        return wrapper  # type: ignore[return-value] # a function, whose signature the protocol describes

    return decorate


def calls_of(
    function: Callable[..., Any],
    do: Callable[..., Coroutine[Any, Any, Any]],
    rules: OnceRules,
    at_gate: Callable[[OnceRules], AtGate],
) -> Callable[[tuple[Any, ...], dict[str, Any]], Coroutine[Any, Any, Any]]:
    """Return the flow of a decorated function's calls, by their arguments without the transaction.

    `do` calls the function; it suspends only in async code. `at_gate`: the steps at this kind of gate.
    """
    key_and_mark = rules.calls.of(function)
    results = rules.results_of(function)
    before = arguments_before(function)
    gate = None if rules.gate is None else at_gate(rules)

    async def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        async def work(transaction: Any) -> Any:
            return results.kept(await do(*args[:before], transaction, *args[before:], **kwargs))

        if not results.are_known:
            results.prepare()
        key, mark = key_and_mark((*args[:before], None, *args[before:]), kwargs)
        transactions = Transactions(rules, work, mark, results.typed)
        return (await Once(transactions, gate).run(key))()

    return call


class AtGate:
    """The steps of `Once` at the gate, for async code. A claim is one of the code's own kind."""

    end: ClassVar[type[CallEnd]] = TaskEnd

    def __init__(self, rules: OnceRules) -> None:
        self.rules = rules
        self.behind = LocalCalls(self.end, self.count_wait).run
        """Returns the answer of an equal call that runs in this process, or runs a call."""

    async def claim(self, name: str, ends: float, mark: Fingerprint | None) -> Any:
        """Claim a key; see `claim_at`."""
        return await claim_at(self.rules.gate, name, ends, mark)

    async def tell(self, claim: Any, settle: Settle) -> None:
        """Tell the gate the outcome of a claim."""
        await settle(claim.settlement)

    def bypass(self, error: DedupError) -> None:
        """Report that the gate does not answer, or that its answer cannot be read."""
        bypassed(self.rules.gate, self.rules.inbox, error)

    def count_wait(self, seconds: float, answered: bool) -> None:
        """Count a wait for an equal call; see `count_wait`."""
        count_wait(self.rules.gate, seconds, answered)


class Once:
    """One call of a decorated function, in its transactions. `gate`: None if its rules have no gate."""

    def __init__(self, transactions: Transactions, gate: AtGate | None) -> None:
        self._transactions = transactions
        self._rules = transactions.rules
        self._gate = gate
        # Mutable: the answer of this call's own transaction.
        self._own: RowAnswer | None = None

    async def run(self, key: str) -> Answer:
        """Claim at the gate, decide in the transaction, tell the gate."""
        answer = await self._answer(key)
        # Not for the callers that have waited for it: a result that duplicates cannot get has no copy for them.
        return answer if answer is not self._own else self._own.of_own_work

    async def _answer(self, key: str) -> Answer:
        rules, gate = self._rules, self._gate
        if gate is None:
            return await self._decide(key, None, None)
        name = rules.inbox.gate_key(key)
        if not rules.wait:
            return await self._through_the_gate(gate, key, name, 0.0)
        call = functools.partial(self._through_the_gate, gate, key, name, monotonic() + rules.wait)
        return await gate.behind((name, self._transactions.mark), call, rules.wait)

    async def _through_the_gate(self, gate: AtGate, key: str, name: str, ends: float) -> Answer:
        """See `run`. `name`: the key at the gate; `ends`: when to stop waiting there."""
        claim = None
        try:
            claim = await gate.claim(name, ends, self._transactions.mark)
            if not claim.acquired:
                claim.replay(self._transactions.typed)  # may raise
                return functools.partial(claim.replay, self._transactions.typed)
        except UNHEARD as unheard:
            gate.bypass(unheard)
        return await self._decide(key, claim, self._rules.gate_wire(name))

    async def _decide(self, key: str, claim: Any, wire: bytes | None) -> Answer:
        """Run the transaction, then tell the gate its outcome, if a claim is held there."""
        try:
            self._own = answer = await self._transactions.answer(key, wire)
        except CommitUnknown as unknown:
            error = unknown.error
        except BaseException:
            await self._tell(claim, Settlement.free)
            raise
        else:
            if claim is not None:
                await self._tell(claim, lambda held: answer.mirror(held, MENDING))
            return answer
        # Either way the next delivery asks the inbox: at once, unless this COMMIT may still come.
        await self._tell(claim, _abandon if is_committed_perhaps(error) else Settlement.free)
        try:
            raise error
        finally:
            del error  # it refers to this frame

    async def _tell(self, claim: Any, settle: Settle) -> None:
        if claim is not None and self._gate is not None:
            await self._gate.tell(claim, settle)


async def _abandon(settlement: Settlement) -> None:
    settlement.abandon()


class Transactions:
    """The transactions of one call: if the database ends one for the sake of another, it is run again.

    Args:
        rules: the decorated function's.
        work: does the work in a transaction.
        mark: the call's fingerprint.
        typed: see `Results.typed`.
    """

    def __init__(
        self, rules: OnceRules, work: Work, mark: Fingerprint | None, typed: Results | None = None
    ) -> None:
        self.typed = typed
        self.rules = rules
        self._work = work
        self.mark = mark
        # Mutable.
        self.has_entered = False
        """True if the latest transaction was begun: an error before the work is the row's."""
        self.has_begun = False
        """True if the latest transaction has begun the work."""
        self.is_lost = False
        """True if the latest transaction has ended in an error of the work because its connection was lost."""

    async def run(self, key: str, wire: bytes | None) -> Any:
        """Return the result of the work, or of the work that was first. Arguments and errors: see `answer`."""
        return (await self.answer(key, wire)).of_own_work()

    async def answer(self, key: str, wire: bytes | None) -> RowAnswer:
        """Return a function for the result of the work, or of the work that was first.

        Args:
            key: the inbox's key.
            wire: the key's bytes in the gate's store. Each run of the work makes the keys of its requests from them,
                even if the gate was not reached; None without a gate.

        Raises:
            CommitUnknown: the COMMIT's reply was lost, or a hook of the application has failed, perhaps after it.
            MismatchError: the key has another fingerprint in its row.
            RetryTransaction: the database has ended every transaction that one call may begin.
            InProgressError: `busy="skip"` met a twin.
            any other error of the work or of the database: the transaction is rolled back.
        """
        attempt = 0
        holder = None if self.rules.bridge.is_async else self
        while True:
            attempt += 1
            opened = OpenTransaction(self.rules, self.typed)
            try:
                with claimed_work(wire, holder):
                    return await self._attempt(opened, key)
            except Exception as error:
                # MariaDB ends the whole transaction, also if this one is nested: then the outer one is run again.
                # Django only notes it, so here the second run learns it.
                if isinstance(error, AbortedError) and attempt > 1 and not self.has_begun:
                    raise RetryTransaction(
                        "the database has ended the transaction around this one: run the whole of it again"
                    ) from error
                if not is_retryable(error) or opened.rollback_failed:
                    raise
                pause = self.rules.pause(attempt, error)
            await self.rules.bridge.pause(pause)

    async def _attempt(self, opened: OpenTransaction, key: str) -> RowAnswer:
        """Run one transaction."""
        self.has_begun = self.is_lost = False
        try:
            answer = await opened.enter(key, self.mark)
        finally:
            self.has_entered = opened.has_entered
        if answer is None:
            self.has_begun = True
            try:
                result = await self._work(opened.transaction)
                await opened.flush()
                answer = await opened.commit(result, may_stay_nested=True)
            except CommitUnknown as unknown:
                # Of a hook of the application, perhaps: run again, a transaction finds the row, or does the work.
                if is_retryable(unknown.error):
                    raise unknown.error
                raise
            except BaseException as error:
                try:
                    await opened.roll_back(error)
                finally:
                    self.is_lost = opened.lost_connection and isinstance(error, Exception)
                raise
        assert answer is not None
        return answer


async def claim_at(dedup: Dedup, name: str, ends: float, mark: Fingerprint | None) -> Claim:
    """Claim at the gate, and wait there; see `wait_at`."""
    since, call = perf_counter(), claim_call(dedup.gate, RENEWED, name, mark)
    call.will_wait = ends > monotonic()
    return await wait_at(dedup.gate, call, await call, ends, since)


async def wait_at(gate: Gate, call: ClaimCall, claim: Claim, ends: float, since: float) -> Claim:
    """Wait at the gate for another owner's work, if a claim has met one.

    Args:
        gate: the claim's gate.
        call: the call that claimed, with a lease that is renewed.
        claim: its answer.
        ends: the time by `monotonic` at which to stop.
        since: the time by `perf_counter` of the call.
    """
    if claim.retry_after is None or not call.will_wait:
        return claim
    found, gives_up = claim.settlement.verdict, end_of(ends - monotonic())
    try:
        # In several looks: one long wait would last through an outage of the gate, in which the inbox decides. Not by
        # another claim(wait=…), which would repeat a question that the store has just answered.
        verdict = await wait_by_looks(gate, call.op, gives_up, found, LOOK)
    except UnavailableError as error:
        count_claim(gate, "claim", error, since)
        raise
    count_claim(gate, "claim", verdict, since)
    return claim_of(gate, call.op, verdict, renew=True)
