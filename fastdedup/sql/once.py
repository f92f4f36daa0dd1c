"""`@inbox.once`: the gate absorbs the storm, the inbox decides in the transaction.

What happens where something fails, by the place of the failure:

    the gate does not answer       the inbox decides alone (`GateBypassed`); also where its answer cannot be read
    the work, or the transaction   rolled back; the gate's claim is released, so that a later delivery is first
    the COMMIT                     unknown: the gate's claim is neither completed nor released. Its lease ends, and
                                   the next delivery asks the inbox
    after the COMMIT               the row answers the next delivery, and that completes the gate's claim
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from time import monotonic, perf_counter
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from ..backoff import Backoff
from ..checks import Seconds, check_arguments_rule, check_count, check_seconds, not_a_gate
from ..claim import Claim
from ..claiming import claim_call
from ..core.calls import ClaimCall, claim_of, count_claim
from ..core.gate import Gate
from ..core.options import ClaimOptions
from ..core.waiting import end_of, wait_by_looks
from ..downstream import claimed_work
from ..errors import (
    ConfigError,
    DedupError,
    ForeignRecordError,
    ResultError,
    RetryTransaction,
    UnavailableError,
    UsageError,
)
from ..events import GateBypassed
from ..gateway import Dedup
from ..keys import Fingerprint
from ..model import Outcome
from .any_inbox import mark_of
from .drivers import Driver
from .drivers.base import is_retryable
from .faults import DatabaseFault, fault_of
from .local_calls import Answer, LocalCalls
from .receipt import Receipt
from .rules import Busy, InboxRules
from .signatures import OnceFunction, arguments_before, hide_transaction

P = ParamSpec("P")
T = TypeVar("T")
Begin = Callable[[], AbstractAsyncContextManager[Any]]
"""Begins a transaction: returns an async context manager that yields it, commits it, or on an error rolls it back."""
Receive = Callable[..., Coroutine[Any, Any, Receipt]]
"""`Inbox.receive`."""
ATTEMPTS: Final = 5
"""Transactions of one call by default."""
_BACKOFF = Backoff(0.01, 1.0, growth=2.0, steady=0.0)
MENDING: Final = 1.0
"""Seconds for the gate to learn of what was committed: the row stands, so its caller does not wait longer."""
RENEWED: Final = ClaimOptions(renew=True)
"""How the gate is asked for a key whose work runs in a transaction."""
LOOK: Final = 1.0
"""Seconds of each look of a caller that waits at the gate: so late at most it finds that the gate does not answer."""


class OnceRules:
    """The settings of one decorated function, checked once; what they mean without I/O."""

    def __init__(
        self,
        inbox: InboxRules,
        key: Callable[..., str],
        gate: Any,
        wait: Seconds,
        busy: Busy,
        attempts: int,
        fingerprint: Callable[..., Any] | None = None,
    ) -> None:
        if not callable(key) or inspect.iscoroutinefunction(key):
            raise ConfigError(
                "once(key=…) must be a function, not async, that returns the key: "
                "for example key=lambda session, message: message.id"
            )
        if fingerprint is not None and (
            not callable(fingerprint) or inspect.iscoroutinefunction(fingerprint)
        ):
            raise ConfigError(f"once(fingerprint=…) must be a function, not async, got {fingerprint!r}")
        self.inbox = inbox
        self._key = key
        self._fingerprint = fingerprint
        self.gate = gate
        self.wait = check_seconds(wait, "wait", least=0.0)
        self.busy = busy
        self.attempts = check_count(attempts, "attempts")
        # Mutable: was it seen that `begin` commits.
        self.proven = False

    def check_function(self, function: Callable[..., Any]) -> None:
        """Raise ConfigError if the rules cannot take the arguments of the function. See `DecoratedFunctions` too."""
        check_arguments_rule(self._key, function, "once(key=…)")
        if self._fingerprint is not None:
            check_arguments_rule(self._fingerprint, function, "once(fingerprint=…)")
        self.inbox.decorated.tell(function, self._key, self.inbox.name, self.inbox.codec)

    def key_and_mark(self, *args: Any, **kwargs: Any) -> tuple[str, Fingerprint | None]:
        """Return the key of a call, and its fingerprint, which is None where calls are not compared."""
        value = None if self._fingerprint is None else self._fingerprint(*args, **kwargs)
        return self._key(*args, **kwargs), mark_of(value)

    def check_outermost(self, driver: Driver) -> None:
        """Check that what is committed stays, where a gate is told of it.

        Raises:
            UsageError: the transaction is a part of another one.
        """
        if self.gate is not None and driver.is_nested():
            raise UsageError(
                "begin= is within another transaction, whose rollback would undo what the gate was told of: begin "
                "the outermost one (in Django atomic(durable=True), outside of ATOMIC_REQUESTS), or leave gate= out"
            )

    def prove(self, outcome: Outcome) -> None:
        """Take in how a key stands that was committed.

        Raises:
            ConfigError: its row is not there. It was there before the COMMIT: `InboxRules.finish` has looked.
        """
        if outcome is Outcome.ACQUIRED:
            raise ConfigError(
                "begin= does not commit, so the work was rolled back: give it what commits as its block ends, such "
                "as Session.begin, not Session; engine.begin, not engine.connect"
            )
        self.proven = outcome is Outcome.SUCCEEDED

    def pause(self, attempt: int, error: Exception) -> float:
        """Return the seconds until the transaction is run again.

        Raises:
            RetryTransaction: that was the last attempt.
        """
        if attempt >= self.attempts:
            raise RetryTransaction(
                f"the database has ended {attempt} transactions of this call, one after another: deliver it again "
                "later, or raise attempts="
            ) from error
        return pause_after(attempt)


def pause_after(attempt: int) -> float:
    """Return the seconds until a transaction is run again: a random part of a pause that grows with each attempt."""
    return _BACKOFF.pause(attempt)


def is_committed_perhaps(error: BaseException) -> bool:
    """True where the error of a COMMIT leaves open whether it took effect: its reply was lost."""
    return fault_of(error) is DatabaseFault.UNKNOWN


UNHEARD: Final = (UnavailableError, ForeignRecordError, ResultError)
"""The gate does not answer, or holds what cannot be read: the inbox decides alone."""


def bypassed(dedup: Dedup, rules: InboxRules, error: DedupError) -> None:
    """Tell that the gate does not answer, or not so that it can be read."""
    dedup.gate.connection.report(GateBypassed(dedup.settings.namespace, rules.name, str(error)))


def count_wait(dedup: Dedup, seconds: float, answered: bool) -> None:
    """Count a call that has waited behind another one of this process, as the gate would have counted it.

    `answered`: it got the result of that call, so it does not ask the gate.
    """
    observers, namespace = dedup.gate.observers, dedup.settings.namespace
    observers.waited(namespace, seconds)
    if answered and (counters := observers.counters) is not None:
        counters.observe(namespace, "claim", Outcome.SUCCEEDED.value, seconds)


class CommitUnknown(Exception):
    """Carries the error of a COMMIT whose reply was lost."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def once(
    receive: Receive, rules: OnceRules, begin: Begin
) -> Callable[
    [Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]], OnceFunction[P, Coroutine[Any, Any, T]]
]:
    """Return the decorator; see `Inbox.once`."""
    if rules.gate is not None and not isinstance(rules.gate, Dedup):
        raise not_a_gate(rules.gate, "once(gate=…)", "fastdedup.Dedup")

    def decorate(
        function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
    ) -> OnceFunction[P, Coroutine[Any, Any, T]]:
        if not inspect.iscoroutinefunction(function):
            raise ConfigError(f"{function!r} is not async: use once() of fastdedup.sync.sql.Inbox")
        rules.check_function(function)

        call: Callable[..., Coroutine[Any, Any, T]] = function
        before = arguments_before(function)
        calls = LocalCalls(functools.partial(count_wait, rules.gate))

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> T:
            def work(transaction: Any) -> Coroutine[Any, Any, T]:
                return call(*args[:before], transaction, *args[before:], **kwargs)

            key, mark = rules.key_and_mark(*args[:before], None, *args[before:], **kwargs)
            answer = await Once(receive, rules, begin, work, mark).run(key, calls)
            result: T = answer()
            return result

        hide_transaction(wrapper, before)
        return wrapper  # type: ignore[return-value] # a function, whose signature the protocol describes

    return decorate


class Once:
    """One call of a decorated function."""

    def __init__(
        self,
        receive: Receive,
        rules: OnceRules,
        begin: Begin,
        work: Callable[[Any], Coroutine[Any, Any, Any]],
        mark: Fingerprint | None,
    ) -> None:
        self._rules = rules
        self._mark = mark
        self._transactions = Transactions(receive, rules, begin, work, mark)

    async def run(self, key: str, calls: LocalCalls) -> Answer:
        """Claim at the gate, decide in the transaction, tell the gate."""
        rules = self._rules
        if rules.gate is None:
            return await self._decide(key, None, None)
        name = rules.inbox.gate_key(key)
        if not rules.wait:
            return await self._through_the_gate(key, name, 0.0)
        ends = monotonic() + rules.wait
        return await calls.run(
            (name, self._mark), lambda: self._through_the_gate(key, name, ends), rules.wait
        )

    async def _through_the_gate(self, key: str, name: str, ends: float) -> Answer:
        """See `run`. `name`: the key at the gate; `ends`: when to wait there no longer."""
        dedup: Dedup = self._rules.gate
        claim: Claim | None = None
        try:
            claim = await claim_at(dedup, name, ends, self._mark)
            if not claim.acquired:
                claim.replay()  # may raise
                return claim.replay
        except UNHEARD as unheard:
            bypassed(dedup, self._rules.inbox, unheard)
        wire = dedup.gate.claims.wire(name) if claim is None else claim.settlement.store_key
        return await self._decide(key, claim, wire)

    async def _decide(self, key: str, claim: Claim | None, wire: bytes | None) -> Answer:
        """Run the transaction, then tell the gate what came of it, where a claim is held there."""
        try:
            answer = await self._transactions.answer(key, wire)
        except CommitUnknown as unknown:
            error = unknown.error
        except BaseException:
            if claim is not None:
                await claim.settlement.free()
            raise
        else:
            if claim is not None:
                await claim.settlement.mirror(answer(), within=MENDING)
            return answer
        if claim is not None:
            claim.settlement.abandon()  # its lease ends, and the next delivery asks the inbox
        try:
            raise error
        finally:
            del error  # it refers to this frame


class Transactions:
    """The transactions of one call: run again where the database ends one for another one's sake."""

    def __init__(
        self,
        receive: Receive,
        rules: OnceRules,
        begin: Begin,
        work: Callable[[Any], Coroutine[Any, Any, Any]],
        mark: Fingerprint | None,
    ) -> None:
        self._receive = receive
        self._rules = rules
        self._begin = begin
        self._work = work
        self._mark = mark

    async def run(self, key: str, wire: bytes | None) -> Any:
        """Return the result of the work, or of the work that was first. Arguments and errors as for `answer`."""
        return (await self.answer(key, wire))()

    async def answer(self, key: str, wire: bytes | None) -> Answer:
        """Return what gives the result of the work, or of the work that was first.

        Args:
            key: the inbox's key.
            wire: the gate's key in its store, of which each run of the work makes the keys for its requests, also
                where the gate was not reached; None without a gate.

        Raises:
            CommitUnknown: the COMMIT's reply was lost.
            MismatchError: the key has another fingerprint in its row.
            RetryTransaction: the database has ended as many transactions as one call may have.
            InProgressError: `busy="skip"` met a twin.
            any other error, of the work or of the database: the transaction is rolled back.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                with claimed_work(wire):
                    return await self._attempt(key)
            except Exception as error:
                if not (isinstance(error, RetryTransaction) or is_retryable(error)):
                    raise
                pause = self._rules.pause(attempt, error)
            await asyncio.sleep(pause)

    async def _attempt(self, key: str) -> Answer:
        """Run one transaction."""
        commits = False
        try:
            async with self._begin() as transaction:
                receipt = await self._receive(transaction, key, fingerprint=self._mark, busy=self._rules.busy)
                self._rules.check_outermost(receipt.driver)
                if not receipt.first:
                    receipt.replay()  # may raise
                    return receipt.answer()
                await receipt.begin_work()
                # The work may have ended the transaction, or caught an error that has: its COMMIT would do nothing.
                await receipt.finish(await self._work(transaction), look=not self._rules.proven)
                commits = True
        except BaseException as error:
            if commits and is_committed_perhaps(error):
                raise CommitUnknown(error) from None
            raise
        if not self._rules.proven:
            await self._prove(key)
        return receipt.answer()

    async def _prove(self, key: str) -> None:
        """See at the first use that `begin` commits: otherwise the gate would drop work that was never done."""
        try:
            async with self._begin() as transaction:
                self._rules.prove((await self._receive(transaction, key, busy="skip")).outcome)
        except ConfigError:
            raise
        except Exception:  # noqa: BLE001 -- the work is committed, so its caller hears of no other error
            return


async def claim_at(dedup: Dedup, name: str, ends: float, mark: Fingerprint | None) -> Claim:
    """Claim at the gate, and wait there as `wait_at` does."""
    since, call = perf_counter(), claim_call(dedup.gate, RENEWED, name, mark)
    call.will_wait = ends > monotonic()
    return await wait_at(dedup.gate, call, await call, ends, since)


async def wait_at(gate: Gate, call: ClaimCall, claim: Claim, ends: float, since: float) -> Claim:
    """Wait at the gate for another owner's work, if a claim has met one.

    Args:
        gate: of the claim.
        call: what was claimed, with a lease that is renewed.
        claim: the answer to it.
        ends: when to wait no longer, by `monotonic`.
        since: when it was claimed, by `perf_counter`.
    """
    if claim.retry_after is None or not call.will_wait:
        return claim
    found, gives_up = claim.settlement.verdict, end_of(ends - monotonic())
    try:
        # By looks: one long wait would last through an outage of the gate, in which the inbox decides. And not by
        # another claim(wait=…), which would ask the store what it has just answered.
        verdict = await wait_by_looks(gate, call.op, gives_up, found, LOOK)
    except UnavailableError as error:
        count_claim(gate, "claim", error, since)
        raise
    count_claim(gate, "claim", verdict, since)
    return claim_of(gate, call.op, verdict, renew=True)
