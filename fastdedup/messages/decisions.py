"""The decisions of this package: what a consumer tells the broker about a delivery, and why."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

log: Final = logging.getLogger("fastdedup.messages")
"""The logger of consumers and tasks, with every broker."""


class Action(StrEnum):
    """The consumer's answer to the broker."""

    ACK = "ack"
    """The message is done: acknowledge it."""
    RETRY = "retry"
    """The message is not done: deliver it again after a pause, never at once."""
    DEAD_LETTER = "dead_letter"
    """Never: it is a dead letter now, so acknowledge it."""


class Reason(StrEnum):
    """Why a delivery got its decision."""

    FIRST = "first"
    """This delivery did the work."""
    DUPLICATE = "duplicate"
    """Another delivery has done the work, or has failed for good."""
    IN_PROGRESS = "in_progress"
    """Another delivery is at work, and did not end in time."""
    FAILED = "failed"
    """The handler raised."""
    LOST = "lost"
    """The lease ended while the handler worked: another delivery may have the message."""
    EXHAUSTED = "exhausted"
    """Earlier deliveries began all attempts, and not one of them ended: their consumers died."""
    MISMATCH = "mismatch"
    """Another message had the same key."""
    UNAVAILABLE = "unavailable"
    """The store did not answer for some seconds. Used only if a worker's slot must not be held for longer."""
    NO_KEY = "no_key"
    """The message has no key, or one that cannot be used."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on a delivery.

    Attributes:
        action: what the consumer tells the broker.
        reason: why.
        key: the message's key; None if it has no key.
        attempts: how often the handler was begun for this message, this delivery included.
        result: what the handler returned, here or in the first delivery, if results are kept.
        error: why the work was not done: the handler's own error, an error of the key, or a FailedError for a
            duplicate of a message that has failed for good. A ResultError: the work is done, and its result, which
            is kept, cannot be read.
    """

    action: Action
    reason: Reason
    key: str | None = None
    attempts: int = 0
    result: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class Counts:
    """Counts of a queue's deliveries by their outcome, since the consumer was made.

    Attributes:
        delivered: messages that the broker delivered.
        first: those whose work succeeded.
        duplicate: those whose work had been done before.
        held: those that waited without an ack, for another delivery at work or for a store that did not answer.
        retried: those that the broker delivers again.
        dead_lettered: those that are dead letters now.
    """

    delivered: int = 0
    first: int = 0
    duplicate: int = 0
    held: int = 0
    retried: int = 0
    dead_lettered: int = 0

    def count(self, decision: Decision) -> None:
        """Count one delivery by its decision."""
        if decision.action is Action.RETRY:
            self.retried += 1
        elif decision.action is Action.DEAD_LETTER:
            self.dead_lettered += 1
        elif decision.reason is Reason.FIRST:
            self.first += 1
        else:
            self.duplicate += 1
