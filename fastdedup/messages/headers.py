"""The headers by which a message carries what happened to it: attempts, and the cause of a dead letter."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from ..errors import describe_error
from .decisions import Decision
from .keys import text_of

ATTEMPTS: Final = "x-fastdedup-attempts"
"""How often the handler was begun for the message."""
KEY: Final = "x-fastdedup-key"
REASON: Final = "x-fastdedup-reason"
ERROR: Final = "x-fastdedup-error"
CONSUMER: Final = "x-fastdedup-consumer"
QUEUE: Final = "x-fastdedup-queue"
"""The queue that the dead letter was consumed from: it is delivered again there."""
AT: Final = "x-fastdedup-at"
"""When the message was dead-lettered, in UTC, by ISO 8601."""
ORIGIN: Final = "x-fastdedup-origin"
"""The first place of a dead letter: its topic, partition and offset, its sequence, or its stream and id."""
LEFT_OUT: Final = "x-fastdedup-left-out"
"""The dead letter is not whole: the broker had no room for these headers of its message."""
AGAIN: Final = "x-fastdedup-again"
"""An operator has taken the message from the dead letters: its work runs though it has failed for good."""
_MOST_ATTEMPTS = 1_000_000
_ERROR_CHARACTERS = 500


def attempts_of(headers: Mapping[str, Any], consumer: str | None) -> int:
    """Return a consumer's attempts that a message's headers count; those of any consumer if it is None.

    0 if the header is missing or is not a number, or if the headers name another consumer: of a dead letter that this
    one consumes, or of the message whose headers a handler has passed on.
    """
    if consumer is not None and text_of(headers.get(CONSUMER, consumer)) != consumer:
        return 0
    value = headers.get(ATTEMPTS, 0)
    try:
        count = int(value)
    except (TypeError, ValueError, OverflowError):
        return 0
    return count if 0 <= count <= _MOST_ATTEMPTS else 0


def is_again(headers: Mapping[str, Any]) -> bool:
    """True for a message that an operator has taken from the dead letters."""
    return AGAIN in headers


def retry_headers(headers: Mapping[str, Any], decision: Decision, consumer: str) -> dict[str, Any]:
    """Return the headers of a message that is to be delivered to a consumer again."""
    attempts = max(attempts_of(headers, consumer), decision.attempts)
    return {**headers, ATTEMPTS: attempts, CONSUMER: consumer}


def dead_letter_headers(decision: Decision, consumer: str) -> dict[str, Any]:
    """Return the headers that say the cause of a dead letter."""
    error = decision.error
    words = "" if error is None else describe_error(error)
    headers = {
        ATTEMPTS: decision.attempts,
        REASON: str(decision.reason),
        ERROR: _encodable(words[:_ERROR_CHARACTERS]),
        CONSUMER: consumer,
        AT: datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    if decision.key is not None:
        headers[KEY] = _encodable(decision.key)
    return headers


def again_headers(headers: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the headers of a dead letter that is delivered again: its own, without the cause.

    This works for the fields of a Redis stream's entry too, whose names are bytes.
    """
    ours = {ATTEMPTS, REASON, ERROR, CONSUMER, QUEUE, AT, KEY, ORIGIN}
    known = ours | {name.encode() for name in ours}
    # Of the type of the broker's own headers: Kafka takes bytes alone, and NATS text alone.
    again = next((one for one in (b"1", "1") if isinstance(headers.get(ATTEMPTS), type(one))), 1)
    return {**{name: value for name, value in headers.items() if name not in known}, AGAIN: again}


def _encodable(text: str) -> str:
    return text.encode(errors="replace").decode()
