"""Known duplicates: a success that the store has just told is told again from memory, for a moment.

In a storm nearly every claim is for a key that is settled already. What this trades: when *another*
process forgets a key, this one may go on answering its old result for `age` seconds. Everything
else holds: an answer is never kept past the record's own expiry, only a success is kept, and
`forget` in this process takes effect at once.
"""

from __future__ import annotations

from time import monotonic

from .stores.base import ClaimOp, Verdict

MAX_ENTRIES = 10_000
MAX_BYTES = 16 * 1024 * 1024


class KnownDuplicates:
    """Successes learned in the last `age` seconds; bounded, the oldest go first."""

    __slots__ = ("_age", "_bytes", "_entries")

    def __init__(self, age: float) -> None:
        self._age = age
        self._entries: dict[bytes, tuple[float, bytes | None, Verdict]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def answer(self, op: ClaimOp) -> Verdict | None:
        """Return the answer to a claim, or None: then the store must be asked."""
        entry = self._entries.get(op.wire)
        if entry is None:
            return None
        until, fingerprint, verdict = entry
        if monotonic() >= until:
            self.drop(op.wire)
            return None
        # Asked with another fingerprint only the store can judge, which knows the record's own.
        if fingerprint != op.fingerprint or op.terms.consumes:
            return None
        return verdict

    def learn(self, op: ClaimOp, verdict: Verdict) -> None:
        """Keep the SUCCEEDED that the store answered, if it is one to keep."""
        if verdict.degraded or op.wire in self._entries:
            return
        size = len(verdict.payload)
        if size > MAX_BYTES // 16 or op.terms.consumes:
            return
        self._entries[op.wire] = (
            monotonic() + min(self._age, verdict.left_ms / 1000),
            op.fingerprint,
            verdict,
        )
        self._bytes += size
        while len(self._entries) > MAX_ENTRIES or self._bytes > MAX_BYTES:
            self.drop(next(iter(self._entries)))

    def drop(self, wire: bytes) -> None:
        """Forget one key."""
        entry = self._entries.pop(wire, None)
        if entry is not None:
            self._bytes -= len(entry[2].payload)
