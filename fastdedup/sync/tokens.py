"""One-time tokens for synchronous code."""

from __future__ import annotations

from typing import Any

from ..checks import Seconds
from ..claim import Claim as AsyncClaim
from ..errors import UnavailableError
from ..gateway import Dedup as AsyncDedup
from ..kernel.granted import GRANTED
from ..kernel.operations import ReleaseOp
from ..model import Outcome
from .background import Bound
from .claim import Claim, answered


class Tokens:
    """`dedup.tokens`: issues, consumes and redeems one-time tokens. See `fastdedup.tokens.Tokens`."""

    def __init__(self, dedup: Bound[AsyncDedup]) -> None:
        self._dedup = dedup

    def issue(self, subject: Any = None, ttl: Seconds | None = None) -> str:
        """Return a new token: URL-safe text of 192 random bits."""
        background, dedup = self._dedup.get()
        return background.run(lambda: dedup.tokens.issue(subject, ttl), self._dedup.per_process.seconds)

    def consume(self, token: str, subject: Any = None, *, owner: str | None = None) -> Outcome:
        """Use a token up in one step: ACQUIRED once, then SUCCEEDED; MISMATCH for another subject; UNKNOWN."""
        background, dedup = self._dedup.get()
        use = dedup.tokens.use(token, subject, owner)
        return background.make(use, self._dedup.per_process.seconds, _itself, _take_back).outcome

    def redeem(
        self,
        token: str,
        subject: Any = None,
        *,
        owner: str | None = None,
        lease: Seconds | None = None,
        ttl: Seconds | None = None,
        wait: Seconds = 0.0,
        renew: bool = False,
    ) -> Claim:
        """Claim a token: do the work, then `complete(result)`, and a second click replays that result."""
        background, dedup = self._dedup.get()
        call = dedup.tokens.redeem(token, subject, owner=owner, lease=lease, ttl=ttl, wait=wait, renew=renew)
        return answered(background, call, self._dedup.per_process.seconds)


def _itself(claim: AsyncClaim) -> AsyncClaim:
    return claim


def _take_back(claim: AsyncClaim) -> None:
    """Take back a use whose caller was interrupted before its answer reached him; a named caller can ask again."""
    if claim.acquired and not claim.settlement.op.named:
        claim.settlement.gate.connection.keep(_unused(claim))


async def _unused(claim: AsyncClaim) -> None:
    wire, owner = claim.settlement.held_key
    GRANTED.discard(wire)
    try:
        await claim.settlement.gate.run(ReleaseOp(wire, owner, claim.fence, consumed=True))
    except UnavailableError:  # as soon as the store answers
        claim.settlement.gate.connection.orphans.add(claim.settlement.op, claim.fence)
