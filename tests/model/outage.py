"""What LocalLRU answers in an outage for a key whose record it has made, as one pure function.

It does what the store would do, with two differences. Without a record it cannot know what the store has: it
begins a record, and refuses the rest. And a token's use is remembered for as long as the token was valid, because
the store may have it as issued.
"""

from __future__ import annotations

from typing import Any

from . import windows
from .spec import present
from .windows import Place
from .words import SETTLED, Claim, Issue, Reply, Transition

REFUSED = Reply("REFUSED")


def step(place: Place, operation: Any, now_us: int) -> tuple[Place, Reply]:
    """Return what stands after an operation, and the reply."""
    before = present(place.record, now_us)
    if before is None and not begins(operation):
        return Place(), REFUSED
    after, reply = windows.step(place, operation, now_us)
    if before and after.record and before.token and after.record.expires < before.expires:
        until = before.expires if after.record.state in SETTLED else after.record.until
        after = Place(after.record._replace(until=until, expires=before.expires))
    return after, reply


def begins(operation: Any) -> bool:
    """True for an operation that may make a record."""
    return isinstance(operation, Issue | Transition) or (
        isinstance(operation, Claim) and operation.mode == "claim"
    )
