"""What a batch's replies and errors mean to each of its callers."""

from __future__ import annotations

from ..errors import UnavailableError, UsageError
from ..model import Outcome
from ..protocol.operations import ClaimOp, Reply, Verdict


def wrong_loop() -> UsageError:
    """Return the error for a call from an event loop or thread that did not open this Dedup."""
    return UsageError(
        "this Dedup was opened in another event loop; open one Dedup in each loop, "
        "and settle a claim in the loop that made it"
    )


def is_first_hand(op: ClaimOp, reply: Verdict) -> bool:
    """True where this call acquired the key, also where its first reply was lost; else its owner held it before.

    A fence is its server's time, so a fence that the server's clock had not reached when the call was sent is the
    call's own (see `ClockBound`). A claim of another process under the same name, made in between, looks the same.
    """
    return reply.fresh or (hasattr(op, "floor_us") and reply.fence > op.floor_us)


def behind(reply: Reply) -> Reply:
    """Return the reply for a claimant that arrives directly after a claimant that got `reply`.

    It is not `fresh`: the store does not know this claimant, so it does not tell it when the key is freed.
    """
    if isinstance(reply, Verdict) and reply.outcome is Outcome.ACQUIRED:
        return Verdict(
            Outcome.IN_PROGRESS, fence=reply.fence, attempt=reply.attempt, left_ms=reply.left_ms, fresh=False
        )
    return reply


def copy_of(error: BaseException) -> BaseException:
    """Return an instance of the error for one waiter: a shared exception would collect every waiter's traceback."""
    if isinstance(error, UnavailableError):
        return UnavailableError(*error.args, retry_after=error.retry_after)
    return error
