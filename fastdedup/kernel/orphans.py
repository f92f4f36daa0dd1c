"""Claims that no caller knows of. An engine finds them, and passes them to an object that frees them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..model import Outcome
from .named import NamedClaims
from .operations import ClaimOp, ReleaseOp, Reply, Verdict
from .replies import RefusedAlone

Send = Callable[[ReleaseOp], "asyncio.Future[Any]"]


class OrphanKeeper(Protocol):
    """Frees the claims that hold, or may come to hold, a key for a caller who does not know of it."""

    def add(self, op: ClaimOp) -> None:
        """Take a claim that was sent without a reply: its record may hold the key."""
        ...

    def watch(self, op: ClaimOp) -> None:
        """Take a claim that was sent again and did not acquire its key: the first sending may."""
        ...

    def free(self, op: ClaimOp, fence: int, send: Send) -> None:
        """Release, with `send`, the key of a claim that was acquired after its caller had gone."""
        ...

    def leave_to_owner(self, op: ClaimOp) -> object:
        """Let go of a claim of a caller-chosen owner, because that owner asks again."""
        ...


class NoOrphans:
    """Keeps nothing: for a forked child, because all claims are its parent's, and for an engine without a gate."""

    def add(self, op: ClaimOp) -> None:
        """Do nothing."""

    def watch(self, op: ClaimOp) -> None:
        """Do nothing."""

    def free(self, op: ClaimOp, fence: int, send: Send) -> None:
        """Do nothing: the lease ends."""

    def leave_to_owner(self, op: ClaimOp) -> None:
        """Do nothing."""


def becomes_orphan(op: ClaimOp, reply: Reply, named: NamedClaims) -> bool:
    """Note that a claim's caller is gone; return True if the claim has acquired its key, and no other call knows it.

    False if the same named owner holds the key by another claim, or has another claim for it under way.
    """
    if not isinstance(reply, Verdict) or reply.outcome is not Outcome.ACQUIRED:
        return False
    return not op.named or named.let_go(op, reply)


def resent(ops: Sequence[ClaimOp], replies: Sequence[Reply]) -> list[ClaimOp]:
    """Return the claims of a batch that were sent again, and then refused, or whose key another owner has."""
    return [
        op
        for op, reply in zip(ops, replies, strict=False)
        if hasattr(op, "resent")
        and (
            isinstance(reply, RefusedAlone)
            or (isinstance(reply, Verdict) and reply.outcome is not Outcome.ACQUIRED)
        )
    ]
