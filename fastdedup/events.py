"""What happens beside the answers, for logs and metrics: frozen facts handed to `Dedup(on_event=…)`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger("fastdedup")


@dataclass(frozen=True, slots=True)
class Degraded:
    """The fallback policy answered, or refused, in place of the store."""

    namespace: str
    verb: str
    answered: bool
    reason: str


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """A claim's lease could not be renewed: another owner may have the key by now."""

    namespace: str
    key: str
    owner: str
    fence: int


@dataclass(frozen=True, slots=True)
class BreakerOpened:
    """The store does not answer: from now on the policy does at once, and probes look for its return."""

    store: str
    """Which store or node, as far as it has a name."""
    reason: str


@dataclass(frozen=True, slots=True)
class BreakerClosed:
    """The store answers again."""

    store: str
    lasted: float
    """Seconds for which the breaker was open."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Too few replicas confirmed a write in time: should the primary be lost now, it may be forgotten."""

    namespace: str
    verb: str
    key: str
    """The key, or "#" and its digest where that is all that is known."""
    replicas: int
    """How many were wanted."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """An outage left two owners of one key: one in this process, one in the store. Both may have acted."""

    namespace: str
    key: str
    """The key, or "#" and its digest where that is all that is known."""
    ours: str
    """The owner whom the fallback policy let through."""
    theirs: str
    """The owner whom the store knows."""
    kept: str
    """Whose record stands, "ours" or "theirs": a success outranks all but another success, else theirs."""


@dataclass(frozen=True, slots=True)
class Unreplayed:
    """What was answered in an outage never got into the store: it is forgotten."""

    namespace: str
    key: str
    owner: str
    reason: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """The store is back, and what was answered in the outage has been put there."""

    adopted: int
    """Keys."""
    conflicts: int
    """Of these, how many had another owner by then: each is a `Conflict` of its own."""


@dataclass(frozen=True, slots=True)
class UndoOverflow:
    """Too many claims were given up at once: this key may stay held, with nobody at work, until its lease ends."""

    namespace: str
    key: str
    """The key, or "#" and its digest where that is all that is known."""


Event = (
    Degraded
    | LeaseLost
    | BreakerOpened
    | BreakerClosed
    | Shortfall
    | Conflict
    | Unreplayed
    | Replayed
    | UndoOverflow
)
OnEvent = Callable[[Event], None]


def emit(on_event: OnEvent | None, event: Event) -> None:
    """Hand an event to the user's callback; what that raises is logged, and changes no answer."""
    if on_event is None:
        return
    try:
        on_event(event)
    except Exception:
        log.exception("the on_event callback failed on %r", event)
