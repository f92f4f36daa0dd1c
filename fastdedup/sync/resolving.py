"""Abandoned work, for synchronous code: the check runs in the caller's thread."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ..admin.resolving import check_answer, renew_no_more, settled_as, takeover_of
from ..admin.takeover import Resolution, Takeover
from ..downstream import beside_work
from .claim import Claim

SyncCheck = Callable[[Takeover], Resolution]


def resolved(claim: Claim, check: SyncCheck, *, renews: bool | None) -> Claim:
    """Do the work of `admin/resolving.py`, with its errors. Meanwhile the lease is renewed in the background."""
    try:
        answer = asked(claim, check)
    except BaseException:
        with suppress(Exception):
            claim.free()
        raise
    if answer is None:
        claim.tell(lambda mine: renew_no_more(mine, bool(renews)))
        return claim
    if claim.lost:  # because the check cannot be stopped
        raise claim.asynchronous.settlement.lost_error()
    found = claim.settled_by(lambda mine: settled_as(mine, answer, renews=bool(renews)))
    return claim if found is claim.asynchronous else claim.with_answer(found)


def asked(claim: Claim, check: SyncCheck, attempt: int = 1) -> Resolution | None:
    """Return the answer of the check; None if no owner can have begun the work before.

    `attempt`: see `takeover_of`.

    Raises:
        ConfigError: its answer is not a Resolution.
        BaseException: any error of the check.
    """
    takeover = takeover_of(claim.asynchronous, attempt)
    if takeover is None:
        return None
    with beside_work():
        return check_answer(check(takeover))
