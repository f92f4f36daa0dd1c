"""The log lines of handlers that raise: a few a minute for each consumer, then a count of the others."""

from __future__ import annotations

import logging
from time import monotonic

from ..events import place_of
from .rules import MessageRules

AT_ONCE = 5
"""Lines that a consumer may have in a minute before its failed attempts are counted only."""
WINDOW = 60.0
log = logging.getLogger("fastdedup.messages")


class FailedAttempts:
    """Tells of one consumer's handler where it raises: by the error's type, and where it was raised.

    The error's text is the user's data: it stands in a dead letter's header, and with the traceback in the log at
    level DEBUG, where each attempt has its line.
    """

    def __init__(self, rules: MessageRules) -> None:
        self._rules = rules
        # Mutable: when the minute began, and how many attempts have failed since.
        self._began = 0.0
        self._count = 0

    def tell(self, key: str, attempt: int, error: BaseException) -> None:
        """Log that an attempt at a message has failed, or count it."""
        now, name = monotonic(), self._rules.consumer
        if now - self._began >= WINDOW:
            more, self._began, self._count = self._count - AT_ONCE, now, 0
            if more > 0:
                log.warning("consumer %r: %d more attempts failed after those that were logged", name, more)
        self._count += 1
        shows_all = log.isEnabledFor(logging.DEBUG)
        if self._count <= AT_ONCE or shows_all:
            log.warning(
                "attempt %d of %d failed: consumer=%r key=%r error=%s at %s",
                attempt,
                self._rules.attempts,
                name,
                key,
                type(error).__name__,
                place_of(error),
                exc_info=error if shows_all else None,
            )
