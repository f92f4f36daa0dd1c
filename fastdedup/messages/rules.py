"""The effect of each outcome on a message: the table of docs/messages.md in code. No I/O."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from ..admin.takeover import Resolution
from ..checks import Seconds, check_count, check_flag, check_seconds, check_wait
from ..errors import (
    ConfigError,
    DedupError,
    InvalidKeyError,
    MismatchError,
    ResultError,
    describe_error,
    first_run_failed,
)
from ..keys import fingerprint as digest_of
from ..model import Outcome
from ..results.completed import completed_json
from ..results.declared import LostResult, Results
from ..sql.rules import TransactionEndedError
from .decisions import Action, Decision, Reason
from .keys import KeyRule, check_rule, gate_key, key_of

ATTEMPTS: Final = 5
"""How often the handler is begun for a message, by default."""
_LEAST_PAUSE: Final = 0.2
_MOST_PAUSE: Final = 0.7
"""Seconds until a held message asks again: the longest time until it notices that the store is back."""
LAYING_PAUSE: Final = 0.1
"""Seconds at least until the broker is asked again to take a dead letter, or a message meets its twin again."""
REFUSED_PAUSE: Final = 1.0
"""Seconds until a broker that has refused a message which is to come again is asked again."""
WAIT: Final = 5.0
"""Seconds to hold a message while another delivery of it is at work, by default."""


class DeadLetterError(Exception):
    """Raise it in a handler: no further attempt can help this message, so it goes to the dead letters at once."""


class AbandonedError(DeadLetterError):
    """An earlier attempt may have done the work, and `resolve=` cannot know."""


def abandoned(answer: Resolution) -> AbandonedError:
    """Return the error of a message if `resolve=` cannot know whether its work was done."""
    return AbandonedError(f"it is unknown whether an earlier attempt did the work: {answer.value}")


class ExhaustedError(DedupError):
    """All attempts at this message are spent, and the last one has not ended.

    Its consumer died, of this message or of another one beside it; or the key was claimed and released elsewhere.
    """


def may_be_done(error: BaseException | None) -> bool:
    """True if the work may have been done in spite of this error: then no copy of it runs for a claim's `ttl`."""
    return isinstance(error, AbandonedError | ExhaustedError)


class MessageRules:
    """One consumer's settings, checked once, and the decision that they give for each outcome.

    Args:
        consumer: its name. Each consumer of a message does its own work, so the name is part of the gate's key.
        key: a function of the broker's message that returns its key, or None.
        wait: seconds to hold a message while another delivery of it is at work.
        attempts: how often the handler is begun for a message, crashes included; then it is dead-lettered.
        retry_delay: seconds from a failed attempt for which no delivery of the message begins the next one.
        lease: seconds for which the gate holds a message's key, unless it is renewed; by default those of the gate.
        fingerprint: a function of the message; another message with the same key and another fingerprint is
            dead-lettered.
        keep_result: keep what the handler returns, for duplicates.
        results: how results of a declared type are kept. Those of no type, or of plain JSON, are kept in JSON: task
            queues pass them on in that form, so the first caller gets no other.

    Raises:
        ConfigError: a setting is wrong; the message names it.
    """

    def __init__(
        self,
        consumer: str,
        key: KeyRule,
        *,
        wait: Seconds | None = WAIT,
        attempts: int = ATTEMPTS,
        retry_delay: Seconds = 0.0,
        lease: Seconds | None = None,
        fingerprint: Callable[[Any], Any] | None = None,
        keep_result: bool = False,
        results: Results | None = None,
    ) -> None:
        if not isinstance(consumer, str) or not consumer:
            raise ConfigError("a consumer needs a name: one text for all processes that share its work")
        self.consumer = consumer
        self.wait = check_wait(wait, WAIT)
        self.attempts = check_count(attempts, "attempts")
        self.retry_delay = check_seconds(retry_delay, "retry_delay", least=0.0)
        # A message that meets its twin spends no attempt, so only this pause keeps it from spinning.
        self.twin_pause = max(0.0, LAYING_PAUSE - self.wait - self.retry_delay)
        self.lease = None if lease is None else check_seconds(lease, "lease")
        self.keep_result = check_flag(keep_result, "keep_result")
        self._results = results
        self._key = check_rule(key)
        self._fingerprint = None if fingerprint is None else check_rule(fingerprint, "fingerprint")

    def key_of(self, message: Any) -> str:
        """Return a message's key.

        Raises:
            NoKeyError: it has no key.
        """
        return key_of(self._key, message)

    def gate_key(self, key: str) -> str:
        """Return the key by which the gate knows a message of this consumer."""
        return gate_key(self.consumer, key)

    def mark_of(self, message: Any) -> Any:
        """Return the message's fingerprint, or None if it is not compared.

        Raises:
            InvalidKeyError: the function that makes it failed.
        """
        if self._fingerprint is None:
            return None
        try:
            value = self._fingerprint(message)
            return None if value is None else digest_of(value)
        except Exception as error:
            raise InvalidKeyError(f"the rule for its fingerprint failed: {describe_error(error)}") from error

    def kept(self, result: Any) -> Any:
        """Return what the gate stores for a result: None if results are not kept. See `Results.kept`."""
        if not self.keep_result:
            return None
        if self._results is None:
            return result
        kept = self._results.kept(result)
        return result if self._results.is_plain and isinstance(kept, LostResult) else kept

    def resolved(self, key: str, value: Any) -> Any:
        """Return the result of `resolve=`, which may be the JSON of one, in the type that the handler declares."""
        if self._results is not None and isinstance(self._results.kept(value), LostResult):
            with suppress(Exception):  # it is no JSON of any value: duplicates get an error
                return self._results.read(completed_json(value), key)
        return value

    # The meaning of an outcome

    def without_key(self, error: Exception, key: str | None = None) -> Decision:
        """Decide on a message that has no key, or one that cannot be used."""
        return Decision(Action.DEAD_LETTER, Reason.NO_KEY, key, error=error)

    def of_duplicate(self, key: str, claim: Any) -> Decision:
        """Decide on a message whose key another delivery has, by its claim."""
        match claim.outcome:
            case Outcome.SUCCEEDED:
                try:
                    result = claim.replay(None if self._results is None else self._results.typed)
                except ResultError as error:
                    # Another codec has stored it. The work is done all the same.
                    why = error if self.keep_result else None
                    return Decision(Action.ACK, Reason.DUPLICATE, key, claim.attempt, error=why)
                return Decision(Action.ACK, Reason.DUPLICATE, key, claim.attempt, result)
            case Outcome.FAILED:
                try:
                    why = claim.error
                except ResultError as error:  # another codec, or a client of the sidecar, has stored it
                    why = error
                failed = first_run_failed(key, why)
                return Decision(Action.ACK, Reason.DUPLICATE, key, claim.attempt, error=failed)
            case Outcome.IN_PROGRESS:
                return Decision(Action.RETRY, Reason.IN_PROGRESS, key)  # no attempt is spent
            case _:
                return self.of_mismatch(key, claim.attempt)

    def of_mismatch(self, key: str, attempt: int) -> Decision:
        """Decide on a message whose key has another fingerprint."""
        error = MismatchError("another message had the same key: its publisher uses one id for two messages")
        return Decision(Action.DEAD_LETTER, Reason.MISMATCH, key, attempt, error=error)

    def exhausted(self, key: str, attempt: int) -> Decision | None:
        """Decide on a message before the handler is begun; return None while an attempt is left."""
        if attempt <= self.attempts:
            return None
        error = ExhaustedError(
            f"{self.attempts} attempts were begun, and the last has not ended: its consumer died, of this message or "
            "of another one beside it, or another program has claimed and released its key. Earlier ones may have "
            "failed: the log has a line for each that did"
        )
        return Decision(Action.DEAD_LETTER, Reason.EXHAUSTED, key, attempt - 1, error=error)

    def of_success(self, key: str, attempt: int, result: Any = None) -> Decision:
        """Decide on a message whose work is done."""
        return Decision(Action.ACK, Reason.FIRST, key, attempt, result)

    def of_error(self, key: str, attempt: int, error: BaseException, *, is_lost: bool) -> Decision:
        """Decide on a message at which the handler raised.

        `is_lost`: its lease is lost, so another consumer may be at work by now: this is no dead letter yet.
        """
        if is_lost:
            return self.of_lost_lease(key, attempt)
        # After the handler's own commit() the next delivery would be a duplicate, though not all of the work is done.
        last = attempt >= self.attempts or isinstance(error, DeadLetterError | TransactionEndedError)
        action = Action.DEAD_LETTER if last else Action.RETRY
        return Decision(action, Reason.FAILED, key, attempt, error=error)

    def of_lost_lease(self, key: str, attempt: int) -> Decision:
        """Decide on a message whose lease ended while the handler worked."""
        return Decision(Action.RETRY, Reason.LOST, key, attempt)


def pause_of_hold() -> float:
    """Return the seconds until a message that is held because a store does not answer asks again."""
    return random.uniform(_LEAST_PAUSE, _MOST_PAUSE)
