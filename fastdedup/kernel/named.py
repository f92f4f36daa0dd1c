"""The claims of owners that callers chose: calls of one name may share an acquisition of a key."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from ..model import Outcome
from .answers import is_first_hand
from .operations import ClaimOp, Verdict

MOST = 10_000
"""The most names whose last acquisition is known."""

Name = tuple[bytes, bytes]
"""A store key and an owner field."""


class NamedAcquisition(NamedTuple):
    """An acquisition by a named owner.

    Attributes:
        fence: its fence.
        calls: how many callers know of it, and are not gone.
        ours: one of this process's calls has acquired it.
    """

    fence: int
    calls: int
    ours: bool


class NamedClaims:
    """The claims of caller-chosen owners: those whose callers wait, and what the others got to know.

    All parts of a store share one.
    """

    __slots__ = ("_acquired", "open")

    def __init__(self) -> None:
        self.open: dict[Name, list[ClaimOp]] = {}
        """The claims of each name whose callers wait. Every batch reads it, so it is not a property."""
        # Mutable: the last acquisition of each name that a caller knows of, the latest last.
        self._acquired: OrderedDict[Name, NamedAcquisition] = OrderedDict()

    def add(self, op: ClaimOp) -> None:
        """Count a claim as open until its caller is about to resume.

        Callbacks run in order. So if one batch answered two claims, and the caller of the first is cancelled when it
        resumes, the second is still open.
        """
        self.open.setdefault((op.wire, op.owner), []).append(op)
        op.future.add_done_callback(lambda _: self._drop(op))

    def _drop(self, op: ClaimOp) -> None:
        name = (op.wire, op.owner)
        claims = self.open[name]
        claims.remove(op)
        if not claims:
            del self.open[name]
        verdict = verdict_known_by(op)
        if verdict is not None:
            self._note(name, op, verdict, 1)

    def _note(self, name: Name, op: ClaimOp, verdict: Verdict, more: int) -> NamedAcquisition:
        """Count callers that know of an acquisition; return what is known of it."""
        known = self._acquired.pop(name, None)
        if known is None or known.fence != verdict.fence:
            known = NamedAcquisition(verdict.fence, 0, False)
        ours = known.ours or is_first_hand(op, verdict)
        noted = self._acquired[name] = NamedAcquisition(verdict.fence, max(known.calls + more, 0), ours)
        if len(self._acquired) > MOST:
            self._acquired.popitem(last=False)
        return noted

    def let_go(self, op: ClaimOp, verdict: Verdict) -> bool:
        """Note that the caller of a claim that acquired its key is gone.

        Return True if a call of this process has acquired it, and no other call of the same owner for the same key
        knows of that acquisition, or is open.
        """
        name = (op.wire, op.owner)
        noted = self._note(name, op, verdict, -int(verdict_known_by(op) is not None))
        if noted.calls or not noted.ours:
            return False
        was_last = all(other is op or other.future.cancelled() for other in self.open.get(name, ()))
        if was_last:
            # Its key is freed now: a later call of this name that gets it back has not acquired it.
            del self._acquired[name]
        return was_last


def verdict_known_by(op: ClaimOp) -> Verdict | None:
    """Return the verdict of a claim that acquired its key, if its caller knows of it."""
    future = getattr(op, "future", None)  # None if only the policy was asked
    if future is None or not future.done() or future.cancelled() or future.exception() is not None:
        return None
    # The claims of a list share one future, and keep their answers.
    reply = getattr(op, "answer", future.result())
    return reply if isinstance(reply, Verdict) and reply.outcome is Outcome.ACQUIRED else None
