"""Work that was abandoned, for synchronous code: the check runs in the caller's thread."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ..claims.resolving import check_answer, renew_no_more, settled, takeover_of
from ..errors import DedupError
from ..model import Resolution, Takeover
from .claim import Claim

SyncCheck = Callable[[Takeover], Resolution]


def resolved(claim: Claim, check: SyncCheck, *, renews: bool) -> Claim:
    """Do what `claims/resolving.py` does. The lease is renewed in the background meanwhile; errors as there."""
    takeover = takeover_of(claim.asynchronous)
    if takeover is None:
        return _renewed(claim, renews)
    try:
        answer = check_answer(check(takeover))
    except BaseException:
        with suppress(DedupError):
            claim.release()
        raise
    found = claim.settled_by(lambda mine: settled(mine, answer))
    return _renewed(claim, renews) if found is claim.asynchronous else claim.with_answer(found)


def _renewed(claim: Claim, renews: bool) -> Claim:
    claim.tell(lambda mine: renew_no_more(mine, renews))
    return claim
