"""Bounds a server's clock from above, to distinguish an acquisition from those that were made before a moment."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from time import monotonic

from .operations import ClaimOp, Op
from .store import TimedStore

NOTE_EVERY = 0.02
"""Seconds after which a batch measures the server's clock again, because the clock may drift."""
_DRIFT_US = 1000.0
"""Microseconds by which the server's clock may gain on ours in a second: twice the rate at which NTP slews."""


class ClockBound:
    """An upper bound of a server's clock at a moment of this process, by time.monotonic().

    A server's time in an answer is later than the moment of the question, so its clock showed no more then. The call
    with the fastest answer gives the best bound.
    """

    __slots__ = ("_ahead_us", "_at", "_store")

    def __init__(self, store: TimedStore) -> None:
        self._store = store
        # Mutable: the most by which the server's clock is ahead, and the moment for which that is known.
        self._ahead_us = inf
        self._at = 0.0

    def sent(self, named: Sequence[ClaimOp]) -> float:
        """Note the clock's bound for the named claims of a batch; return the moment of sending.

        Times that the store gave this process before are below its latest time, even if its clock was set since.
        """
        sent_at = monotonic()
        raise_floors(named, max(self.latest_us(sent_at), self._store.latest_us))
        return sent_at

    def answered(self, named: Sequence[ClaimOp], sent_at: float) -> None:
        """Update the bound after a batch's replies; `sent_at` is a moment before it was sent."""
        shown_us, now = self._store.latest_us, monotonic()
        ahead_us = shown_us - sent_at * 1e6
        # Beyond the bound: the clock was set ahead, or another server's clock counts since a failover.
        jumped = shown_us > self.latest_us(now)
        if jumped or ahead_us < self._ahead_us + (sent_at - self._at) * _DRIFT_US:
            self._ahead_us, self._at = ahead_us, sent_at
        # Always, because the clock may have jumped at another batch's answer.
        raise_floors(named, self.latest_us(sent_at))

    def latest_us(self, at: float) -> float:
        """Return the clock's upper bound at a moment, in microseconds; infinite before any reply."""
        return at * 1e6 + self._ahead_us + (at - self._at) * _DRIFT_US


def named_claims(ops: Sequence[Op]) -> list[ClaimOp]:
    """Return the claims of caller-chosen owners.

    Claims that another node of the store has sent on are left out: they may have been executed there, and keep the
    bound that was noted first.
    """
    claims = [op for op in ops if isinstance(op, ClaimOp)]
    return [claim for claim in claims if claim.named and not getattr(claim, "hops", 0)]


def raise_floors(named: Sequence[ClaimOp], floor_us: float) -> None:
    """Note that no fence up to this one belongs to these claims."""
    for claim in named:
        claim.floor_us = max(floor_us, getattr(claim, "floor_us", 0.0))
