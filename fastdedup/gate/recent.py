"""Known duplicates: a success that the store has just told is told again from memory, for a moment.

In a storm nearly every claim is for a key that is settled already. What this trades: when *another*
process forgets a key, this one may go on answering its old result for `age` seconds. Everything
else holds: an answer is never kept past the record's own expiry, only a success is kept, and
`forget` in this process takes effect at once.
"""

from __future__ import annotations

from time import monotonic

from ..claim import Claim
from ..claims.call import KnownCall

MAX_ENTRIES = 10_000
MAX_BYTES = 16 * 1024 * 1024


class KnownDuplicates(dict[str, KnownCall]):
    """Successes of one namespace, learned in the last `age` seconds; bounded, the oldest go first.

    By the key's text, not the store's key, and with a finished answer that all callers share: so a
    known duplicate costs neither a hash nor an object. An age of 0 learns nothing.
    """

    __slots__ = ("_age", "_bytes")

    def __init__(self, age: float) -> None:
        super().__init__()
        self._age = age
        self._bytes = 0

    def learn(self, claim: Claim, fingerprint: bytes | None, size: int, left: float) -> None:
        """Keep a success of `size` bytes that the store has told, and that its record keeps for `left` seconds."""
        now = monotonic()
        age = min(self._age, left)
        former = self.get(claim.key)
        if age <= 0 or size > MAX_BYTES // 16 or (former is not None and now < former.until):
            return
        self.drop(claim.key)
        self[claim.key] = KnownCall(claim, now + age, fingerprint, size)
        self._bytes += size
        while len(self) > MAX_ENTRIES or self._bytes > MAX_BYTES:
            self.drop(next(iter(self)))

    def drop(self, key: str) -> None:
        """Forget one key."""
        known = self.pop(key, None)
        if known is not None:
            self._bytes -= known.size
