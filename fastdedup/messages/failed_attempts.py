"""The log lines of handlers that raise: a few a minute for each consumer, then a count of the others."""

from __future__ import annotations

import logging

from ..failures import place_of
from ..log_throttle import LogThrottle
from .decisions import log
from .rules import MessageRules

AT_ONCE = 5
"""Lines that a consumer may log in a minute; further failed attempts are only counted."""
WINDOW = 60.0


class FailedAttempts:
    """Logs the errors that one consumer's handler raises: the error's type, and the line that raised it.

    The error's text is the user's data: it stands in a dead letter's header. At level DEBUG the log has it
    too, with the traceback, in a line for each attempt.

    Args:
        rules: the consumer's settings.
        is_silent: log nothing, because the consumer's own framework logs what a handler raises.
    """

    def __init__(self, rules: MessageRules, *, is_silent: bool = False) -> None:
        self._rules = rules
        self._is_silent = is_silent
        self._throttle = LogThrottle(AT_ONCE, WINDOW)

    def tell(self, key: str, attempt: int, error: BaseException) -> None:
        """Log that an attempt at a message has failed, or count it."""
        if self._is_silent:
            return
        shows_all = log.isEnabledFor(logging.DEBUG)
        if not shows_all and not self._throttle.passes():
            return
        self.tell_count()
        log.warning(
            "attempt %d of %d failed: consumer=%r key=%r error=%s at %s",
            attempt,
            self._rules.attempts,
            self._rules.consumer,
            key,
            type(error).__name__,
            place_of(error),
            exc_info=error if shows_all else None,
        )

    def tell_count(self) -> None:
        """Log how many attempts have failed without a line of their own, if any has."""
        if count := self._throttle.take_left_out():
            log.warning(
                "consumer %r: attempts that failed without a line of their own: %d",
                self._rules.consumer,
                count,
            )
