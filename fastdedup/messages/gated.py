"""The gate alone decides on a delivery: done once, but for a consumer that dies between its work and its record."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack, suppress
from typing import Any

from ..claim import Claim
from ..errors import (
    ClaimLostError,
    DedupError,
    InProgressError,
    ResultError,
    ResultTooLargeError,
    UnavailableError,
)
from ..gateway import Dedup
from ..model import Outcome, State
from .decisions import Action, Decision
from .delivery import Delivery
from .holding import HeldMessage, Pauses
from .rules import MessageRules

log = logging.getLogger("fastdedup.messages")


class GatedWay:
    """Claims a delivery's key at the gate, and does the work under the claim."""

    def __init__(self, rules: MessageRules, dedup: Dedup, pauses: Pauses) -> None:
        self._rules = rules
        self._dedup = dedup
        self._pauses = pauses

    async def decide(self, delivery: Delivery) -> Decision:
        """Do the work if this delivery is the first; return what came of it."""
        attempt, done = delivery.failed + 1, None
        try:
            async with AsyncExitStack() as stack:
                claim = await self._claim(stack, delivery)
                if not claim.acquired:
                    return self._rules.of_duplicate(delivery.key, claim)
                attempt = max(attempt, claim.attempt)
                decision = self._rules.exhausted(delivery.key, attempt)
                if decision is None:
                    try:
                        result = await delivery.handler(delivery.message)
                    except Exception as error:  # noqa: BLE001 -- the rules decide, whatever it is
                        decision = self._rules.of_error(delivery.key, attempt, error)
                    else:
                        done = self._rules.of_success(delivery.key, attempt, result)
                        await self._complete(claim, result)
                        return done
                return await self._undone(delivery, claim, decision)
        except (ClaimLostError, UnavailableError):
            return done or self._rules.of_lost_lease(delivery.key, attempt)

    async def _claim(self, stack: AsyncExitStack, delivery: Delivery) -> Claim:
        """Claim so that a lost lease stops the handler. Holds the message while the gate does not answer."""
        key, wait = self._rules.gate_key(delivery.key), 0.0
        with HeldMessage(self._pauses) as hold:
            while True:
                call = self._dedup.claim(key, fingerprint=delivery.mark, renew=True, wait=wait)
                try:
                    claim = await stack.enter_async_context(call)
                except UnavailableError as error:
                    await hold.pause(error)
                    continue
                hold.end()
                if claim.outcome is Outcome.IN_PROGRESS and wait < self._rules.wait:
                    hold.count()
                    wait = self._rules.wait
                elif claim.outcome is Outcome.FAILED and delivery.again:
                    delivery.again = False
                    await reopen(self._dedup, key)
                else:
                    return claim

    async def _complete(self, claim: Claim, result: Any) -> None:
        try:
            await claim.complete(result if self._rules.keep_result else None)
        except (ResultError, ResultTooLargeError) as error:
            log.warning("consumer %r: a result is not kept: %s", self._rules.consumer, error)
            await claim.complete(None)

    async def _undone(self, delivery: Delivery, claim: Claim, decision: Decision) -> Decision:
        """Free the key for the next delivery, or record the failure, once the dead letter is laid down."""
        if decision.action is Action.DEAD_LETTER:
            await delivery.bury(decision)
        await settle(claim, decision)
        return decision


async def settle(claim: Claim, decision: Decision) -> None:
    """Tell the gate of a message that was not done. Where that fails the lease ends by itself."""
    with suppress(DedupError):
        if decision.action is not Action.DEAD_LETTER:
            await claim.release()
            return
        try:
            await claim.fail(decision.error)
        except (ResultError, ResultTooLargeError):
            await claim.fail(type(decision.error).__name__)


async def reopen(dedup: Dedup, key: str) -> None:
    """Forget a failure that was recorded, for a message that somebody has taken from the dead letters.

    Under a lock, because another copy of the message may have been taken as well: the key that one of them has
    claimed must not be forgotten by the other.
    """
    with suppress(InProgressError, ClaimLostError):
        async with dedup.lock(key, renew=True):
            record = await dedup.get(key)
            if record is not None and record.state is State.FAILED:
                await dedup.forget(key)
