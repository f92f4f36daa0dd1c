"""Claims that no caller knows of: they are released, or, where the store did not answer, remembered as given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from ..errors import UnavailableError
from ..model import Outcome
from .answers import is_first_hand
from .named import NamedClaims
from .operations import ClaimOp, ReleaseOp
from .replies import Reply, Verdict


class Orphans(Protocol):
    """Frees the claims that hold, or may come to hold, a key for a caller who does not know of it."""

    def add(self, op: ClaimOp) -> None:
        """Take a claim that was sent and got no reply: its record may hold the key."""
        ...

    def watch(self, op: ClaimOp) -> None:
        """Take a claim that was sent again and did not acquire its key: the first sending may."""
        ...

    def keep(self, op: ClaimOp) -> object:
        """Let go of a claim of a caller-chosen owner, because that owner asks again."""
        ...


class Unwanted:
    """Takes back what an engine's claims have acquired for nobody.

    Args:
        submit: sends a release and returns the future of its reply.
        orphans: takes what cannot be taken back here.
    """

    __slots__ = ("_orphans", "_submit")

    def __init__(self, submit: Callable[[ReleaseOp], asyncio.Future[Any]], orphans: Orphans | None) -> None:
        self._submit = submit
        self._orphans = orphans

    def leave_to_parent(self) -> None:
        """Tell of nothing any more in a forked child: the claims are the parent's."""
        self._orphans = None

    def watch_resent(self, ops: Sequence[ClaimOp], replies: Sequence[Reply]) -> None:
        """Tell of the claims of a batch that were sent again, and whose key another owner has."""
        if self._orphans is None:
            return
        for op, reply in zip(ops, replies, strict=False):
            if hasattr(op, "unsure") and isinstance(reply, Verdict) and reply.outcome is not Outcome.ACQUIRED:
                self._orphans.watch(op)

    def give_up(self, op: ClaimOp) -> None:
        """Tell of a claim that was sent and got no reply."""
        if self._orphans is not None:
            self._orphans.add(op)

    def release(self, op: ClaimOp, reply: Reply, named: NamedClaims) -> bool:
        """Release a claim that was acquired after its caller was cancelled; a consumed token is issued again.

        Returns False, and releases nothing, where the same named owner holds the key by an earlier claim or has
        another claim for it under way.
        """
        if not isinstance(reply, Verdict) or reply.outcome is not Outcome.ACQUIRED:
            return False
        if op.named and (named.others(op) > 0 or not is_first_hand(op, reply)):
            return False
        release = ReleaseOp(op.wire, op.owner, reply.fence, consumed=op.terms.consumes)
        self._submit(release).add_done_callback(partial(self._released, op))
        return True

    def _released(self, op: ClaimOp, future: asyncio.Future[Reply]) -> None:
        if future.cancelled() or isinstance(future.exception(), UnavailableError) or hasattr(op, "unsure"):
            self.give_up(op)
