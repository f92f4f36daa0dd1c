"""LocalLRU: go on with a store in this process, bounded, and say so on every answer."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..checks import check_count
from ..errors import UnavailableError
from ..stores.base import ClaimOp, IssueOp, Mode, Moved, Op, Reply, TransitionOp, Verdict
from ..stores.memory import MemoryStore


def makes_a_record(op: Op) -> bool:
    """True for what may begin in this process: a claim, a token's issue, a machine's first transition."""
    if isinstance(op, ClaimOp):
        return op.terms.mode is Mode.CLAIM
    return isinstance(op, IssueOp | TransitionOp)


class LocalLRU:
    """Answer from this process's memory while the store is unavailable; each answer has `degraded=True`.

    Unique within this process only: two processes that degrade at once may both acquire a key.
    Records made while degraded go on answering for their keys until they expire. Full, it
    refuses (UnavailableError) rather than forget an unexpired claim.

    Args:
        maxsize: records held at most.
        max_bytes: estimate of the memory they may take.
        clock: seconds since 1970; for tests.
    """

    def __init__(
        self,
        maxsize: int = 100_000,
        *,
        max_bytes: int = 64 * 1024 * 1024,
        clock: Callable[[], float] = time.time,
    ) -> None:
        check_count(maxsize, "maxsize")
        check_count(max_bytes, "max_bytes")
        self._maxsize = maxsize
        self._store = MemoryStore(maxsize=maxsize, max_bytes=max_bytes, clock=clock)

    def __repr__(self) -> str:
        return f"LocalLRU(maxsize={self._maxsize})"

    def answer(self, op: Op, error: UnavailableError) -> Reply:
        """Answer from memory. What only the store can know, of a key made there, is refused, not guessed."""
        if not self._store.holds(op.wire) and not makes_a_record(op):
            raise error
        reply = self._store.apply(op)
        if isinstance(reply, Verdict | Moved):
            reply.degraded = True
        return reply

    def holds(self, wire: bytes) -> bool:
        """True for a key that was claimed while degraded."""
        return self._store.holds(wire)
