"""Work that was abandoned, for synchronous code: the check runs in the caller's thread."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ..admin.resolving import check_answer, renew_no_more, settled_as, takeover_of
from ..admin.takeover import Resolution, Takeover
from ..downstream import beside_work
from ..errors import DedupError
from .claim import Claim

SyncCheck = Callable[[Takeover], Resolution]


def resolved(claim: Claim, check: SyncCheck, *, renews: bool) -> Claim:
    """Do what `admin/resolving.py` does. The lease is renewed in the background meanwhile; errors as there."""
    try:
        answer = asked(claim, check)
    except BaseException:
        with suppress(DedupError):
            claim.free()
        raise
    if answer is None:
        claim.tell(lambda mine: renew_no_more(mine, renews))
        return claim
    if claim.lost:  # nobody could stop the check
        raise claim.asynchronous.settlement.lost_error()
    found = claim.settled_by(lambda mine: settled_as(mine, answer, renews=renews))
    return claim if found is claim.asynchronous else claim.with_answer(found)


def asked(claim: Claim, check: SyncCheck, attempt: int = 1) -> Resolution | None:
    """Return what the check answers; None where nobody can have begun the work before.

    `attempt`: as for `takeover_of`.

    Raises:
        ConfigError: its answer is no Resolution.
        BaseException: what the check raises.
    """
    takeover = takeover_of(claim.asynchronous, attempt)
    if takeover is None:
        return None
    with beside_work():
        return check_answer(check(takeover))
