"""The values that answers are made of. Names follow the outcome table in the README."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """What a claimant finds."""

    ACQUIRED = "acquired"
    """You are the first: do the work, then settle."""
    IN_PROGRESS = "in_progress"
    """Another owner is at work; `retry_after` says when its lease ends."""
    SUCCEEDED = "succeeded"
    """Done before; `result` is the first result."""
    FAILED = "failed"
    """Failed before, for good; `error` is what was recorded."""
    MISMATCH = "mismatch"
    """The key is known with another fingerprint."""
    UNKNOWN = "unknown"
    """The token was never issued, or has expired."""


class State(StrEnum):
    """Where a stored record stands."""

    ISSUED = "issued"
    PROCESSING = "processing"
    RELEASED = "released"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class BreakerState(StrEnum):
    """Whether a store is asked."""

    CLOSED = "closed"
    """It answers."""
    PARTLY_OPEN = "partly_open"
    """Some nodes of a Cluster do not answer."""
    OPEN = "open"
    """It does not answer: callers are answered by the policy at once, and probes look whether it is back."""


class TransitionOutcome(StrEnum):
    """What became of a requested transition."""

    CHANGED = "changed"
    ALREADY = "already"
    """The machine stood in the wanted state already: a duplicate."""
    ILLEGAL = "illegal"
    """The definition does not allow this move from the present state."""
    STALE = "stale"
    """The machine has moved on from the given version."""


@dataclass(frozen=True, slots=True)
class Record:
    """What the store holds under a key, as `Dedup.get` shows it.

    Attributes:
        owner: the owner's text, which repr() leaves out; never show it to a claimant, who could settle with it.
        fence: rises from owner to owner of the key.
        attempt: how often the key was acquired; 0 for a token that nobody redeemed.
        lease: seconds until the lease ends (0 or less: it ended), None unless PROCESSING.
        ttl: seconds until the record vanishes.
        fingerprint: 16 bytes, or None.
    """

    key: str
    state: State
    owner: str = field(repr=False)
    fence: int
    attempt: int
    lease: float | None
    ttl: float
    fingerprint: bytes | None
    result: Any = None
    error: Any = None


@dataclass(frozen=True, slots=True)
class Transition:
    """The answer to one requested transition.

    Attributes:
        state: where the machine stands now, changed or not.
        version: how many changes it has had.
        degraded: True where the fallback policy answered instead of the store.
        confirmed: False where too few replicas had it in time (`replicas=`).
    """

    outcome: TransitionOutcome
    state: str
    version: int
    degraded: bool = False
    confirmed: bool = True

    @property
    def changed(self) -> bool:
        """True where this call moved the machine."""
        return self.outcome is TransitionOutcome.CHANGED
