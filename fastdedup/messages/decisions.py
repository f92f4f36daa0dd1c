"""The answers of this package: what the broker shall be told about a delivery, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Action(StrEnum):
    """What the broker shall be told."""

    ACK = "ack"
    """The message is done: acknowledge it."""
    RETRY = "retry"
    """Not now: deliver it again after a pause, never at once."""
    DEAD_LETTER = "dead_letter"
    """Never: it lies where dead letters lie, so acknowledge it."""


class Reason(StrEnum):
    """Why."""

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
    """Every attempt was begun before, and none of them ended: their consumers died."""
    MISMATCH = "mismatch"
    """Another message had the same key."""
    UNAVAILABLE = "unavailable"
    """The store did not answer for some seconds: only where a worker's slot must not be held for longer."""
    NO_KEY = "no_key"
    """The message has no key, or one that cannot be used."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What came of a delivery.

    Attributes:
        action: what the broker shall be told.
        reason: why.
        key: the message's key; None where it has none.
        attempts: how often the handler was begun for this message, this delivery included.
        result: what the handler returned, here or in the delivery that was first, where results are kept.
        error: why it was not done: the handler's own error, what was wrong with the key, or for a duplicate of a
            message that has failed for good, a FailedError.
    """

    action: Action
    reason: Reason
    key: str | None = None
    attempts: int = 0
    result: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class Counts:
    """What came of the deliveries of a queue, since the consumer was made.

    Attributes:
        delivered: messages that the broker delivered.
        first: those that were worked on with success.
        duplicate: those that had been done before.
        held: those that waited unacknowledged, for another delivery at work, or for a store that did not answer.
        retried: those that are to be delivered again.
        dead_lettered: those that lie where dead letters lie.
    """

    delivered: int = 0
    first: int = 0
    duplicate: int = 0
    held: int = 0
    retried: int = 0
    dead_lettered: int = 0

    def count(self, decision: Decision) -> None:
        """Count what came of one delivery."""
        if decision.action is Action.RETRY:
            self.retried += 1
        elif decision.action is Action.DEAD_LETTER:
            self.dead_lettered += 1
        elif decision.reason is Reason.FIRST:
            self.first += 1
        else:
            self.duplicate += 1
