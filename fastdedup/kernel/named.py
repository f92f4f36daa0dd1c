"""Counts the open claims of owners that callers chose: several claims of one owner may be under way for one key."""

from __future__ import annotations

from collections import Counter

from .operations import ClaimOp


class NamedClaims:
    """The claims of caller-chosen owners that are not answered yet. All parts of a store share one."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: Counter[tuple[bytes, bytes]] = Counter()
        """The counts by store key and owner. Every batch reads it, so it is not a property."""

    def add(self, op: ClaimOp) -> None:
        """Count a claim until its caller is about to resume.

        Callbacks run in order. So if one batch answered two claims, and the caller of the first is cancelled when it
        resumes, the second is still counted.
        """
        op.counted = True
        self.counts[op.wire, op.owner] += 1
        op.future.add_done_callback(lambda _: self._drop(op))

    def others(self, op: ClaimOp) -> int:
        """Return how many other claims of the same owner for the same key are open."""
        return self.counts.get((op.wire, op.owner), 0) - int(getattr(op, "counted", False))

    def _drop(self, op: ClaimOp) -> None:
        op.counted = False
        name = (op.wire, op.owner)
        self.counts[name] -= 1
        if not self.counts[name]:
            del self.counts[name]
