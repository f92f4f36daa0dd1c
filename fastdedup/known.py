"""Known duplicates: a success that the store has just told is told again from memory, for a moment.

In a storm nearly every claim is for a key that is settled already. What this trades: when *another*
process forgets a key, this one may go on answering its old result for `age` seconds. Everything
else holds: an answer is never kept past the record's own expiry, only a success is kept, and
`forget` in this process takes effect at once.
"""

from __future__ import annotations

from time import monotonic

from .claim import Claim, KnownCall

MAX_ENTRIES = 10_000
MAX_BYTES = 16 * 1024 * 1024


class KnownDuplicates:
    """Successes of one namespace, learned in the last `age` seconds; bounded, the oldest go first.

    By the key's text, not the store's key, and with a finished answer that all callers share: so a
    known duplicate costs neither a hash nor an object.
    """

    __slots__ = ("_age", "_bytes", "_entries")

    def __init__(self, age: float) -> None:
        self._age = age
        self._entries: dict[str, tuple[float, bytes | None, int, KnownCall]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def answer(self, key: str, fingerprint: bytes | None) -> KnownCall | None:
        """Return the answer to a claim, or None: then the store must be asked."""
        entry = self._entries.get(key)
        # Asked with another fingerprint only the store can judge, which knows the record's own.
        if entry is None or entry[1] != fingerprint:
            return None
        if monotonic() >= entry[0]:
            self.drop(key)
            return None
        return entry[3]

    def learn(self, claim: Claim, fingerprint: bytes | None, payload: bytes, left: float) -> None:
        """Keep a success that the store has told, and that its record keeps for `left` seconds."""
        size = len(payload)
        if claim.key in self._entries or size > MAX_BYTES // 16:
            return
        self._entries[claim.key] = (monotonic() + min(self._age, left), fingerprint, size, KnownCall(claim))
        self._bytes += size
        while len(self._entries) > MAX_ENTRIES or self._bytes > MAX_BYTES:
            self.drop(next(iter(self._entries)))

    def drop(self, key: str) -> None:
        """Forget one key."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry[2]
