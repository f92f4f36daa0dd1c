"""The inbox decides on a delivery, in the handler's own transaction; a gate before it absorbs the storm."""

from __future__ import annotations

from time import monotonic, perf_counter
from typing import Any, Final

from ..arguments import CallRules
from ..claim import Claim
from ..claiming import claim_call
from ..codec import Encoded, encode
from ..core.calls import ClaimCall
from ..errors import (
    ClaimLostError,
    ConfigError,
    FailedError,
    InProgressError,
    InvalidKeyError,
    MismatchError,
    ResultError,
    ResultTooLargeError,
    UnavailableError,
    UsageError,
)
from ..gateway import Dedup
from ..model import Outcome
from ..sql.bridge import Begin
from ..sql.drivers.base import ClosedConnectionError, is_outage
from ..sql.faults import layers
from ..sql.inbox import Inbox
from ..sql.once import MENDING, RENEWED, UNHEARD, Transactions, bypassed, wait_at
from ..sql.open_transaction import CommitUnknown, OnceRules
from .decisions import Action, Decision, Reason
from .delivery import Delivery, is_failure
from .failed_attempts import FailedAttempts
from .gated import not_kept, reopen, settle
from .holding import HeldMessage, Pauses
from .rules import MessageRules

_MISTAKES: Final = (ConfigError, UsageError, TypeError, AttributeError, NameError)
"""Before the work begins, these errors come from the consumer's set-up: a pause does not fix them."""


class _Exhausted(Exception):
    """Ends a transaction before its work begins."""


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
        self._pauses = pauses
        self._failed_attempts = failed_attempts
        self._once = OnceRules(inbox, begin, CallRules(rules.key_of))
        # Mutable, until the first message: the options of its claim.
        self._options = RENEWED.but(lease=rules.lease)

    def hold_for(self, lease: float) -> None:
        """Claim each message's key for so many seconds, unless the claim is renewed."""
        self._options = self._options.but(lease=lease)

    async def decide(self, delivery: Delivery) -> Decision:
        """Do the work if this delivery is the first; return the decision."""
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
        """Work under a claim, or without one; tell the gate the outcome, also after an error."""
        try:
            decision = await self._transact(delivery, claim)
            if decision.action is Action.DEAD_LETTER:
                await delivery.bury(decision)
        except BaseException:
            if claim is not None:
                await claim.settlement.free()
            raise
        if claim is not None and decision.action is Action.ACK and decision.error is not None:
            await claim.settlement.free()  # the row goes on answering
        elif claim is not None and decision.action is Action.ACK:
            await claim.settlement.mirror(decision.result, within=MENDING)
        elif claim is not None:
            await settle(claim.settlement, decision, self._rules.retry_delay)
        return decision

    def _wire(self, key: str) -> bytes | None:
        """Return the key's bytes in the gate's store, even if the gate was not reached; None without a gate."""
        if self._dedup is None:
            return None
        return self._dedup.gate.claims.wire(self._inbox.rules.gate_key(key))

    async def _claim(self, dedup: Dedup, delivery: Delivery) -> Claim:
        key = self._inbox.rules.gate_key(delivery.key)

        def ask() -> ClaimCall:
            call = claim_call(dedup.gate, self._options, key, delivery.mark)
            call.will_wait = self._rules.wait > 0.0
            return call

        since, call = perf_counter(), ask()
        claim: Claim = await call
        if claim.outcome is Outcome.FAILED and delivery.again:
            try:
                await reopen(dedup, key, claim)
            except (ClaimLostError, InProgressError) as error:
                # The failure may not be forgotten yet, so the inbox decides alone.
                raise UnavailableError(str(error)) from error
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

        async def work(transaction: Any) -> Any:
            if refused is not None:
                raise refused  # there is no row, so the last COMMIT has done nothing: the attempt has failed
            if exhausted is not None:
                raise _Exhausted
            kept, inbox = self._rules.kept(await delivery.work(transaction)), self._inbox.rules
            try:
                return Encoded((encode(inbox.codec, kept, inbox.max_result),))
            except (ResultError, ResultTooLargeError) as error:
                not_kept(self._rules, error)
                return None

        transactions = Transactions(self._once, work, delivery.mark)
        refused: Exception | None = None
        was_lost = False
        with HeldMessage(self._pauses) as hold:
            while True:
                try:
                    result = await transactions.run(delivery.key, wire)
                except CommitUnknown as unknown:
                    error: BaseException = unknown.error
                    if delivery.is_ended_by(error):
                        raise error from None
                    refused = error if isinstance(error, Exception) and not is_outage(error) else None
                except _Exhausted:
                    assert exhausted is not None
                    return exhausted
                except BaseException as fault:
                    # Of the row; `begin` may tell it in the application's words.
                    is_of_row = transactions.has_entered and not transactions.has_begun
                    of_row = tuple(layers(fault)) if is_of_row else ()
                    if any(isinstance(each, MismatchError) for each in of_row):
                        return self._rules.of_mismatch(delivery.key, attempt)
                    not_had = next((e for e in of_row if isinstance(e, (FailedError, ResultError))), None)
                    if not_had is not None:
                        # The row says that the work is done; its result cannot be read, or was not kept.
                        why = not_had if self._rules.keep_result else None
                        return Decision(Action.ACK, Reason.DUPLICATE, delivery.key, attempt, error=why)
                    if self._once.refuted:
                        raise
                    # A handler that loses its connection each time, by a timeout, must not hold its message for ever.
                    holds = transactions.is_lost and not was_lost
                    if transactions.has_begun and is_failure(fault) and not holds:
                        self._failed_attempts.tell(delivery.key, attempt, fault)
                        is_lost = claim is not None and claim.lost
                        return self._rules.of_error(delivery.key, attempt, fault, is_lost=is_lost)
                    if not isinstance(fault, Exception):
                        raise
                    was_lost = was_lost or holds
                    is_mistake = isinstance(fault, (*_MISTAKES, InvalidKeyError)) and not holds
                    if is_mistake and not isinstance(fault, ClosedConnectionError):
                        raise
                    error = fault
                else:
                    reason = Reason.FIRST if transactions.has_begun else Reason.DUPLICATE
                    return Decision(Action.ACK, reason, delivery.key, attempt, result)
                await hold.pause(error)
