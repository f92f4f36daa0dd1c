"""Decides which of the primaries that sentinels name is the present one, without I/O.

The rule is Sentinel's own (Redis documentation, "High availability with Redis Sentinel", sections "Configuration
epochs" and "Configuration propagation"): each failover gets a number of its own, the configuration epoch, and "the
greater version always wins over smaller versions". So one answer with a higher epoch is enough to follow. Answers
with a lower epoch change nothing: sentinels that were cut off still name the primary from before the failover.

There are two exceptions, and both need the answers of a majority. If the sentinels were set up again, their epochs
start from the beginning. If an operator moved the service by hand, the epoch stays the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from .url import Address

NO_EPOCH = -1
"""The epoch of an answer of a sentinel that does not tell its epoch. Then the majority decides."""


class NamedPrimary(NamedTuple):
    """The primary that a sentinel names, and the configuration epoch in which it became the primary."""

    epoch: int
    address: Address


class LatestPrimary:
    """The present primary of a service, as far as this process knows.

    Args:
        sentinels: the number of sentinels in the store's URL.
    """

    def __init__(self, sentinels: int) -> None:
        self.majority = sentinels // 2 + 1
        self.known: NamedPrimary | None = None
        """The present primary; None before the first answer."""

    def hear(self, named: NamedPrimary) -> None:
        """Take the answer of one sentinel. It counts if it is the first answer, or has a higher epoch."""
        if self.known is None or named.epoch > self.known.epoch:
            self.known = named

    def conclude(self, answers: Sequence[NamedPrimary]) -> None:
        """Take the answers of several sentinels to one question. They count if they are a majority and agree."""
        if self.known is None or len(answers) < self.majority:
            return
        latest, votes = max(Counter(answers).items(), key=lambda each: (each[0].epoch, each[1]))
        if latest.epoch < self.known.epoch or votes >= self.majority:
            self.known = latest

    def accepts(self, named: NamedPrimary) -> bool:
        """True if the answer names the present primary, and not the primary from before a failover."""
        known = self.known
        return known is None or named.address == known.address or named.epoch == known.epoch == NO_EPOCH

    def confirmed(self, named: NamedPrimary) -> None:
        """Take an answer whose server has confirmed that it is a primary: without epochs this is the best source."""
        if self.known is not None and self.known.epoch == NO_EPOCH:
            self.known = named
