"""Bounds a server's clock from above: so an acquisition is told from those that were made before a moment."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from time import monotonic

from .operations import ClaimOp, Op
from .store import TimedStore

NOTE_EVERY = 0.02
"""Seconds after which a batch tells anew about the server's clock: meanwhile that may drift."""
_DRIFT_US = 1000.0
"""Microseconds in a second by which the server's clock may gain on ours: twice what NTP slews."""


class ClockBound:
    """What a server's clock had not passed at a moment of this process, by time.monotonic().

    A server that told a time was asked before, so its clock showed no more then. The call that was answered fastest
    bounds it best.
    """

    __slots__ = ("_ahead_us", "_at", "_store")

    def __init__(self, store: TimedStore) -> None:
        self._store = store
        # Mutable: by how much the server's clock is ahead at most, and of which moment that is known.
        self._ahead_us = inf
        self._at = 0.0

    def sent(self, named: Sequence[ClaimOp]) -> float:
        """Note for the named claims of a batch what the server's clock has not passed; return when it is sent.

        What the store told this process before is below its latest time, also if its clock was set since.
        """
        sent_at = monotonic()
        raise_floors(named, max(self.latest_us(sent_at), self._store.latest_us))
        return sent_at

    def answered(self, named: Sequence[ClaimOp], sent_at: float) -> None:
        """Take in that a batch has its replies; `sent_at` is before it was sent."""
        shown_us, now = self._store.latest_us, monotonic()
        ahead_us = shown_us - sent_at * 1e6
        # Beyond the bound: the clock was set ahead, or another server's clock counts since a failover.
        jumped = shown_us > self.latest_us(now)
        if jumped or ahead_us < self._ahead_us + (sent_at - self._at) * _DRIFT_US:
            self._ahead_us, self._at = ahead_us, sent_at
        # Always: the clock may have jumped by another batch's answer.
        raise_floors(named, self.latest_us(sent_at))

    def latest_us(self, at: float) -> float:
        """Return what the server's clock had not passed at a moment, in microseconds; infinite before any reply."""
        return at * 1e6 + self._ahead_us + (at - self._at) * _DRIFT_US


def named_claims(ops: Sequence[Op]) -> list[ClaimOp]:
    """Return the claims of caller-chosen owners.

    But for those that another part of the store has sent on: they may have been executed there, and keep what was
    noted first.
    """
    claims = [op for op in ops if isinstance(op, ClaimOp)]
    return [claim for claim in claims if claim.named and not getattr(claim, "hops", 0)]


def raise_floors(named: Sequence[ClaimOp], floor_us: float) -> None:
    """Note that no fence up to this one is of these claims' own."""
    for claim in named:
        claim.floor_us = max(floor_us, getattr(claim, "floor_us", 0.0))
