"""The gate decides on a delivery, for consumers that block: `fastdedup.messages.gated` in two steps, without asyncio.

Main path: `BlockingWay.begin` → the work → `Attempt.succeed` or `Attempt.fail`. A worker's slot must not be held
without end, because other tasks need it: a message that meets an outage of `HOLD` seconds comes again later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from ..admin.resolving import check_resolve
from ..backoff import Backoff
from ..checks import wrong_type
from ..core.options import ClaimOptions
from ..core.settlement import Settlement
from ..downstream import claimed_work
from ..errors import (
    ClaimLostError,
    ConfigError,
    DedupError,
    ForeignRecordError,
    InProgressError,
    InvalidKeyError,
    UnavailableError,
    error_text,
)
from ..log_throttle import LogThrottle
from ..model import Outcome
from ..results.declared import LostResult
from ..sync.claim import Claim
from ..sync.claiming import claim_now
from ..sync.gateway import Dedup
from ..sync.ledger import Ledger
from ..sync.resolving import SyncCheck, asked
from .decisions import Action, Decision, Reason, log
from .failed_attempts import FailedAttempts
from .gated import done_before, reopen, settle, succeed
from .memory import check_ledger
from .rules import REFUSED_PAUSE, MessageRules, pause_of_hold

WAIT: Final = 1.0
"""Seconds to wait in a worker's slot for a twin at work, by default. Asyncio's consumers have no slots."""
HOLD: Final = 5.0
"""Seconds to hold a delivery while the store does not answer. Each slot delays one message in that time, not all."""
Record = Callable[[BaseException], Any]
_LONGEST_OUTAGE_DELAY: Final = 5.0


def check_gate(dedup: Any) -> Dedup:
    """Return a gate for synchronous code.

    Raises:
        ConfigError: `dedup` is not such a gate.
    """
    if isinstance(dedup, Dedup):
        return dedup
    wrong = wrong_type(dedup, "dedup=", "fastdedup.sync.Dedup")
    raise ConfigError(f"{wrong}: these tasks are synchronous. Write `from fastdedup.sync import Dedup`")


async def _succeeded(settlement: Settlement, rules: MessageRules, kept: Any) -> None:
    """See `succeed`. If the codec panics, leave the claim as a block of `async with` does: the work is done."""
    try:
        await succeed(settlement, rules, kept)
    except Exception:
        raise
    except BaseException as error:
        await settlement.leave(error)
        raise


def _repr_of(error: BaseException) -> str:
    return error_text(error, repr)


class Attempt:
    """One attempt at a message: the right to work on it, until it is settled.

    Attributes:
        claim: the key's claim, renewed in the background.
        number: how often the work was begun, this time included.
        done: the result of an earlier attempt that had done the work, in a tuple; None if the work has to run.
    """

    __slots__ = ("_rules", "_way", "claim", "done", "key", "number")

    def __init__(self, way: BlockingWay, key: str, claim: Claim, number: int) -> None:
        self._way = way
        self._rules = way.rules
        self.key = key
        self.claim = claim
        self.number = number
        self.done: tuple[Any] | None = None

    @property
    def is_last(self) -> bool:
        """True if this is the last attempt."""
        return self.number >= self._rules.attempts

    def result_of(self, work: Callable[[], Any]) -> Any:
        """Return what the work returns, or the result of an earlier attempt that had done it."""
        if self.done is not None:
            return self.done[0]
        # Its requests have the same keys at each attempt.
        with claimed_work(self.claim.asynchronous.settlement.store_key, self.claim):
            return work()

    def succeed(self, result: Any = None, pack: Callable[[Any], Any] = lambda result: result) -> Decision:
        """Record success. The work is done, so this does not raise if the record cannot be written.

        `pack`: returns a result in the form that is kept. If it raises, duplicates get an error in its place.
        """
        kept: Any = LostResult(pack, result, "its serializer was interrupted")
        try:
            kept = self._rules.kept(pack(result))
        except Exception as error:  # noqa: BLE001 -- the serializer may be the user's own
            kept = LostResult(pack, result, _repr_of(error))
        finally:  # also if a signal ends the serializer: the work is done
            self._tell(lambda held: _succeeded(held, self._rules, kept))
        return self._rules.of_success(self.key, self.number, result)

    def fail(self, error: BaseException) -> Decision:
        """Free the key for the next attempt; after the last one record the failure, for duplicates."""
        decision = self._rules.of_error(self.key, self.number, error, is_lost=self.claim.lost)
        return decision if decision.reason is Reason.LOST else self._undone(decision)

    def resolve(self) -> Decision | None:
        """Return the decision on a message that cannot go on: its attempts are spent, or the check says so."""
        exhausted = self._rules.exhausted(self.key, self.number)
        if exhausted is not None:
            return self._undone(exhausted)
        if self._way.check is None:
            return None
        try:
            answer = asked(self.claim, self._way.check, self.number)
            if answer is not None:
                self.done = done_before(self._rules, self.claim.asynchronous, self.key, answer)
        except Exception as error:  # noqa: BLE001 -- an attempt that failed, whatever it is
            self._way.failed_attempts.tell(self.key, self.number, error)
            return self.fail(error)
        except BaseException:
            self.free()
            raise
        return None

    def free(self) -> None:
        """Free the key. If the store does not answer, its lease ends by itself."""
        self._tell(Settlement.free)

    def _undone(self, decision: Decision) -> Decision:
        error = decision.error
        told = None if error is None or decision.action is not Action.DEAD_LETTER else self._way.record(error)
        self._tell(lambda held: settle(held, decision, self._rules.retry_delay, told))
        return decision

    def _tell(self, outcome: Callable[[Settlement], Coroutine[Any, Any, Any]]) -> None:
        """Tell the gate an outcome, in its own thread. The decision stands if that fails."""
        try:
            with suppress(DedupError):  # the lease has ended, or ends by itself
                self.claim.say(lambda claim: outcome(claim.settlement))
        except Exception as error:  # noqa: BLE001 -- such as a task's time limit, which has ended the work too
            log.error(
                "consumer %r: the outcome of %r may not be recorded: %r",
                self._rules.consumer,
                self.key,
                error,
            )


class BlockingWay:
    """Claims a delivery's key at the gate, for code that blocks.

    Args:
        rules: the consumer's settings.
        dedup: the gate.
        kind: the framework's word for its consumers, for the log; None if no framework calls, but the user.
        record: turns an error into what duplicates get, once a message has failed for good.
        remember: the ledger in which the gate remembers the messages that are done.
        resolve: asked before the work runs again, whether it was done; see `fastdedup.sync.Dedup.claim`.

    Raises:
        ConfigError: `remember` is not a ledger of this gate; `resolve` is not a function of a Takeover, or is async.
    """

    def __init__(
        self,
        rules: MessageRules,
        dedup: Dedup,
        kind: str | None = None,
        record: Record = _repr_of,
        remember: Ledger | None = None,
        resolve: SyncCheck | None = None,
    ) -> None:
        self.rules = rules
        self._dedup = dedup
        self._kind = kind
        self.record = record
        check_ledger(remember, Ledger, dedup.per_process, dedup.settings.namespace)
        self._options = ClaimOptions(lease=rules.lease, wait=rules.wait, renew=True, remember=remember)
        if resolve is not None:
            check_resolve(resolve, asynchronous=False)
        self.check = resolve
        self._refusals, self._faults = LogThrottle(), LogThrottle()
        self.failed_attempts = FailedAttempts(rules)  # errors of the work itself are logged by its framework

    def begin(self, message: Any, *, failed: int = 0, again: bool = False) -> Attempt | Decision:
        """Return an attempt at a message, or the decision on it if there is no attempt.

        If the gate cannot be asked, because it is closed or can start no thread, that is not the message's fault. For
        a framework it would be the task's own error, so there the message comes again later.

        Args:
            message: as the rule for its key takes it.
            failed: the attempts that the message's own headers count.
            again: an operator has taken it from the dead letters: work on it though it has failed for good.

        Raises:
            any error of a gate that cannot be asked, if no framework calls.
        """
        key: str | None = None
        try:
            key = self.rules.key_of(message)
            return self._begin(key, self.rules.mark_of(message), failed, again)
        except (InvalidKeyError, ForeignRecordError) as error:
            return self.rules.without_key(error, key)
        except Exception as error:
            if self._kind is None:
                raise
            if self._faults.passes():
                text = "%s %r: a message is held, because the gate cannot be asked: %r"
                log.error(text, self._kind, self.rules.consumer, error)
            return Decision(Action.RETRY, Reason.UNAVAILABLE, key, error=error)

    def _begin(self, key: str, mark: Any, failed: int, again: bool) -> Attempt | Decision:
        claim = self._claim(key, mark, again)
        if isinstance(claim, Decision):
            return claim
        if not claim.acquired:
            return self.rules.of_duplicate(key, claim)
        attempt = Attempt(self, key, claim, max(failed + 1, claim.attempt))
        return attempt.resolve() or attempt

    def delay(self, decision: Decision, delayed: int) -> float:
        """Return the seconds until a message that is to be retried shall come again.

        Args:
            decision: the decision.
            delayed: how often the message was delayed before. The seconds double each time, up to the lease.
        """
        most = self.rules.lease or self._dedup.settings.lease
        if decision.reason is Reason.UNAVAILABLE:
            most = min(most, _LONGEST_OUTAGE_DELAY)
        return Backoff(1.0, most, growth=2.0).pause(delayed)

    def deliver_later(self, send: Callable[[], object]) -> bool:
        """Send a message again; return False, a moment later, if the broker does not take it: it is held then."""
        try:
            send()
        except Exception as error:  # noqa: BLE001 -- after any error of the broker, the message must not be lost
            if self._refusals.passes():
                text = "%s %r: a message is held, because the broker does not take it: %r"
                log.warning(text, self._kind, self.rules.consumer, error)
            time.sleep(REFUSED_PAUSE)
            return False
        return True

    def _claim(self, key: str, mark: Any, again: bool) -> Claim | Decision:
        """Claim the key. `again`: a failure that was recorded is forgotten first, as soon as it may be."""
        ends, gate_key = time.monotonic() + HOLD, self.rules.gate_key(key)
        while True:
            try:
                claim = claim_now(self._dedup.bound, self._options, gate_key, mark)
                if not again or claim.outcome is not Outcome.FAILED:
                    return claim
                failed = claim.asynchronous
                self._dedup.bound.run(lambda dedup: reopen(dedup, gate_key, failed))  # noqa: B023 -- run at once
                again = False  # not before: a try that failed is repeated
                continue
            except (ClaimLostError, InProgressError, UnavailableError) as error:
                if time.monotonic() >= ends:
                    return Decision(Action.RETRY, Reason.UNAVAILABLE, key, error=error)
            time.sleep(pause_of_hold())
