"""The inbox decides on a delivery, in the handler's own transaction; a gate before it absorbs the storm."""

from __future__ import annotations

from time import monotonic, perf_counter
from typing import Any, Final

from ..claim import Claim
from ..claiming import claim_call
from ..core.calls import ClaimCall
from ..errors import ConfigError, InvalidKeyError, MismatchError, UsageError
from ..gateway import Dedup
from ..model import Outcome
from ..sql.inbox import Inbox
from ..sql.once import (
    ATTEMPTS,
    MENDING,
    RENEWED,
    UNHEARD,
    Begin,
    CommitUnknown,
    OnceRules,
    Transactions,
    bypassed,
    wait_at,
)
from .decisions import Action, Decision, Reason
from .delivery import Delivery, is_failure
from .failed_attempts import FailedAttempts
from .gated import reopen, settle
from .holding import HeldMessage, Pauses
from .rules import MessageRules

_MISTAKES: Final = (ConfigError, UsageError, TypeError, AttributeError, NameError)
"""Before the work has begun these come from how the consumer was set up: no pause mends them."""


class _Exhausted(Exception):
    """Ends a transaction whose work shall not begin."""


class InboxWay:
    """Does the work in a transaction that the inbox's row belongs to."""

    def __init__(
        self,
        rules: MessageRules,
        dedup: Dedup | None,
        inbox: Inbox,
        begin: Begin,
        pauses: Pauses,
        failed_attempts: FailedAttempts,
    ) -> None:
        self._rules = rules
        self._dedup = dedup
        self._inbox = inbox
        self._begin = begin
        self._pauses = pauses
        self._failed_attempts = failed_attempts
        self._once = OnceRules(inbox.rules, rules.key_of, None, 0.0, "wait", ATTEMPTS)

    async def decide(self, delivery: Delivery) -> Decision:
        """Do the work if this delivery is the first; return what came of it."""
        try:
            claim = None if self._dedup is None else await self._claim(self._dedup, delivery)
        except UNHEARD as unheard:
            assert self._dedup is not None
            bypassed(self._dedup, self._inbox.rules, unheard)
            claim = None
        if claim is not None and not claim.acquired:
            return self._rules.of_duplicate(delivery.key, claim)
        return await self._under(claim, delivery)

    async def _under(self, claim: Claim | None, delivery: Delivery) -> Decision:
        """Work under a claim, or without one; tell the gate, whatever comes of it."""
        try:
            decision = await self._transact(delivery, claim)
            if decision.action is Action.DEAD_LETTER:
                await delivery.bury(decision)
        except BaseException:
            if claim is not None:
                await claim.settlement.free()
            raise
        if claim is not None and decision.action is Action.ACK:
            await claim.settlement.mirror(decision.result, within=MENDING)
        elif claim is not None:
            await settle(claim.settlement, decision, self._rules.retry_delay)
        return decision

    def _wire(self, key: str) -> bytes | None:
        """Return the gate's key in its store, also where the gate was not reached; None without a gate."""
        if self._dedup is None:
            return None
        return self._dedup.gate.claims.wire(self._inbox.rules.gate_key(key))

    async def _claim(self, dedup: Dedup, delivery: Delivery) -> Claim:
        key = self._inbox.rules.gate_key(delivery.key)

        def ask() -> ClaimCall:
            call = claim_call(dedup.gate, RENEWED, key, delivery.mark)
            call.will_wait = self._rules.wait > 0.0
            return call

        since, call = perf_counter(), ask()
        claim: Claim = await call
        if claim.outcome is Outcome.FAILED and delivery.again:
            await reopen(dedup, key, claim)
            since, call = perf_counter(), ask()
            claim = await call
        if claim.outcome is Outcome.IN_PROGRESS:
            self._pauses.counts.held += 1
        return await wait_at(dedup.gate, call, claim, monotonic() + self._rules.wait, since)

    async def _transact(self, delivery: Delivery, claim: Claim | None) -> Decision:
        """Run the transaction. Holds the message while the database does not answer, or a COMMIT's reply was lost."""
        attempt = max(delivery.failed + 1, 0 if claim is None else claim.attempt)
        exhausted = self._rules.exhausted(delivery.key, attempt)
        wire = self._wire(delivery.key)
        begun = False

        async def work(transaction: Any) -> Any:
            nonlocal begun
            if exhausted is not None:
                raise _Exhausted
            begun = True
            result = await delivery.work(transaction)
            return result if self._rules.keep_result else None

        transactions = Transactions(self._inbox.receive, self._once, self._begin, work, delivery.mark)
        with HeldMessage(self._pauses) as hold:
            while True:
                begun = False
                try:
                    result = await transactions.run(delivery.key, wire)
                except CommitUnknown as unknown:
                    error: BaseException = unknown.error
                except _Exhausted:
                    assert exhausted is not None
                    return exhausted
                except BaseException as fault:
                    if not begun and isinstance(fault, MismatchError):
                        return self._rules.of_mismatch(delivery.key, attempt)
                    if begun and is_failure(fault):
                        self._failed_attempts.tell(delivery.key, attempt, fault)
                        return self._rules.of_error(delivery.key, attempt, fault)
                    if not isinstance(fault, Exception) or isinstance(fault, (*_MISTAKES, InvalidKeyError)):
                        raise
                    error = fault
                else:
                    reason = Reason.FIRST if begun else Reason.DUPLICATE
                    return Decision(Action.ACK, reason, delivery.key, attempt, result)
                await hold.pause(error)
