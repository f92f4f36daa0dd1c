"""The gate alone decides on a delivery: done once, unless a consumer dies between its work and its record."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ..admin.resolving import Check, answer_of, takeover_of
from ..admin.takeover import Resolution, Resolved
from ..claim import Claim
from ..claiming import claim_call
from ..codec import is_unstorable
from ..core.options import ClaimOptions
from ..core.settlement import Settlement
from ..errors import ClaimLostError, DedupError, ForeignRecordError, InProgressError, UnavailableError
from ..gateway import Dedup
from ..kernel.operations import ForgetOp, ReadOp
from ..kernel.records import Stored
from ..ledger.client import Ledger
from ..model import Outcome
from ..results.declared import LostResult
from .decisions import Action, Decision, Reason, log
from .delivery import Delivery, is_failure
from .failed_attempts import FailedAttempts
from .holding import HeldMessage, Pauses
from .rules import MessageRules, abandoned, may_be_done


class GatedWay:
    """Claims a delivery's key at the gate, and does the work under the claim."""

    def __init__(
        self,
        rules: MessageRules,
        dedup: Dedup,
        pauses: Pauses,
        failed_attempts: FailedAttempts,
        remember: Ledger | None = None,
        resolve: Check | None = None,
    ) -> None:
        self._rules = rules
        self._dedup = dedup
        self._pauses = pauses
        self._failed_attempts = failed_attempts
        self._resolve = resolve
        # Mutable, until the first message: the options of its claim, and of one that does not wait.
        self._options = ClaimOptions(lease=rules.lease, wait=rules.wait, renew=True, remember=remember)
        self._at_once = self._options.at_once

    def hold_for(self, lease: float) -> None:
        """Claim each message's key for so many seconds, unless the claim is renewed."""
        self._options = self._options.but(lease=lease)
        self._at_once = self._options.at_once

    async def decide(self, delivery: Delivery) -> Decision:
        """Do the work if this delivery is the first; return the decision.

        The message is held while the gate does not answer. A lost lease stops the handler.
        """
        key, options = self._rules.gate_key(delivery.key), self._at_once
        with HeldMessage(self._pauses) as held:
            while True:
                try:
                    call = claim_call(self._dedup.gate, options, key, delivery.mark)
                    call.will_wait = options is self._at_once and self._rules.wait > 0.0
                    async with call as claim:
                        held.end()
                        if claim.acquired:
                            return await self._work(delivery, claim)
                    if claim.outcome is Outcome.IN_PROGRESS and call.will_wait:
                        held.count()
                        options = self._options
                    elif claim.outcome is Outcome.FAILED and delivery.again:
                        await reopen(self._dedup, key, claim)
                        delivery.again = False  # not before: a try that failed is repeated
                    else:
                        return self._rules.of_duplicate(delivery.key, claim)
                    continue
                except (ClaimLostError, ForeignRecordError, InProgressError, UnavailableError) as error:
                    if delivery.done is not None:  # only its record is missing
                        return delivery.done
                    if isinstance(error, ForeignRecordError):
                        raise
                    if delivery.attempt:
                        return self._rules.of_lost_lease(delivery.key, delivery.attempt)
                    fault = error
                await held.pause(fault)

    async def _work(self, delivery: Delivery, claim: Claim) -> Decision:
        rules, key = self._rules, delivery.key
        delivery.claim = claim
        delivery.attempt = attempt = max(delivery.failed + 1, claim.attempt)
        decision = rules.exhausted(key, attempt)
        if decision is None:
            try:
                result = await self._result_of(delivery, claim)
            except BaseException as error:
                if not is_failure(error):
                    raise
                if hasattr(claim.settlement, "trace"):
                    claim.settlement.fault = error
                self._failed_attempts.tell(key, attempt, error)
                decision = rules.of_error(key, attempt, error, is_lost=claim.lost)
                if decision.reason is Reason.LOST:
                    return decision
            else:
                delivery.done = done = rules.of_success(key, attempt, result)
                claim.settlement.note_done()
                await succeed(claim.settlement, rules, rules.kept(result))
                return done
        # Before its failure is recorded: else a crash here would lose it.
        if decision.action is Action.DEAD_LETTER:
            await delivery.bury(decision)
        await settle(claim.settlement, decision, rules.retry_delay)
        return decision

    async def _result_of(self, delivery: Delivery, claim: Claim) -> Any:
        """Return what the handler returns, or the result of an earlier attempt that had done the work.

        Raises: the errors of `done_before`.
        """
        takeover = None if self._resolve is None else takeover_of(claim, delivery.attempt)
        if takeover is not None:
            assert self._resolve is not None
            answer = await delivery.result_of(answer_of(self._resolve, takeover))
            if (done := done_before(self._rules, claim, delivery.key, answer)) is not None:
                return done[0]
        return await delivery.work()


# What this way and `fastdedup.messages.blocking`, the one without asyncio, do alike


def done_before(rules: MessageRules, claim: Claim, key: str, answer: Resolution) -> tuple[Any] | None:
    """Return the result of an earlier attempt by the answer of `resolve=`, in a tuple; None if the work has to run.

    Raises:
        AbandonedError: `resolve=` cannot know whether an earlier attempt has done the work.
        ClaimLostError: the lease was lost while the check ran, which could not be stopped, or did not stop.
    """
    if claim.lost:
        raise claim.settlement.lost_error()
    if answer.kind is Resolved.UNKNOWN:
        raise abandoned(answer)
    return (rules.resolved(key, answer.value),) if answer.kind is Resolved.DONE else None


def not_kept(rules: MessageRules, error: DedupError | str) -> None:
    """Log that the work is done, and its result cannot be kept."""
    log.warning("consumer %r: a result is not kept: %s", rules.consumer, error)


async def succeed(settlement: Settlement, rules: MessageRules, kept: Any) -> None:
    """Record that a message is done. `kept`: its result in its kept form, or a `LostResult`. Errors: see `record`."""
    if isinstance(kept, LostResult):
        not_kept(rules, kept.why)
        await kept.record(settlement)
    else:
        await settlement.record(kept, instead=lambda error: not_kept(rules, error))


async def settle(settlement: Settlement, decision: Decision, delay: float, told: Any = None) -> None:
    """Tell the gate that a message was not done. If that fails, its lease ends by itself at the latest.

    Args:
        settlement: its claim's.
        decision: the decision on it.
        delay: seconds until the next attempt may begin.
        told: what duplicates get if it has failed for good, by default the error; the error if it cannot be stored.
    """
    if decision.reason is Reason.MISMATCH:  # of the inbox: another message, which did not fail, has the key
        await settlement.free()
    elif decision.action is not Action.DEAD_LETTER:
        await settlement.free(after=delay)
    else:
        error = decision.error
        with suppress(DedupError):
            await settlement.record(
                error if told is None else told,
                succeeded=False,
                done=may_be_done(error),
                instead=lambda _: error,
            )
        settlement.abandon()  # else leaving `async with` would record a success


def _is_done(failed: Claim) -> bool:
    """True if the work is done and only its result could not be stored: then the work must not run again."""
    try:
        return is_unstorable(failed.error)
    except DedupError:  # it cannot be read
        return False


async def reopen(dedup: Dedup, key: str, failed: Claim) -> None:
    """Forget a failure that was recorded, for a message that an operator has taken from the dead letters.

    This needs a lock, because the operator may have taken another copy of the message too: one copy must not forget
    the key that the other has claimed.

    Raises:
        InProgressError: another copy has the lock, or the lock of a try that failed is not free yet.
        ClaimLostError: the lock was lost: perhaps nothing was forgotten.
        UnavailableError: the store did not answer.
    """
    async with dedup.lock(key, renew=True):
        gate, wire = dedup.gate, failed.settlement.held_key[0]
        record = await gate.run(ReadOp(wire))
        if isinstance(record, Stored) and record.state == "F" and not _is_done(failed):
            await gate.run(ForgetOp(wire))
