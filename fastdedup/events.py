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


Event = Degraded | LeaseLost
OnEvent = Callable[[Event], None]


def emit(on_event: OnEvent | None, event: Event) -> None:
    """Hand an event to the user's callback; what that raises is logged, and changes no answer."""
    if on_event is None:
        return
    try:
        on_event(event)
    except Exception:
        log.exception("the on_event callback failed on %r", event)
