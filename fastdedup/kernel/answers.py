"""Turns a batch's replies and errors into the answers of its callers."""

from __future__ import annotations

import asyncio
from typing import Final

from ..errors import UnavailableError, UsageError
from ..model import Outcome
from .codes import Code
from .operations import ClaimOp, Op, Reply, Verdict, Witness
from .owners import trace_of
from .records import decode, is_record, read_holding
from .replies import StoreRefusal


def wrong_loop() -> UsageError:
    """Return the error for a call from an event loop or thread that has not opened this Dedup."""
    return UsageError(
        "this Dedup was opened in another event loop; open one Dedup in each loop, "
        "and settle a claim in the loop that made it"
    )


def closed() -> UsageError:
    """Return the error for a call of a gate that was closed."""
    return UsageError("this Dedup is closed; open a new one")


def too_late(timeout: float) -> UnavailableError:
    """Return the error for an operation that was sent and got no answer in time."""
    return UnavailableError(f"the store gave no answer within {timeout:g} s")


def too_many(pending: int) -> UnavailableError:
    """Return the error for an operation beyond `max_pending`."""
    return UnavailableError(
        f"{pending} operations are pending, which is the limit (max_pending): the store is too slow "
        "for this load; send less, or raise max_pending"
    )


def is_first_hand(op: ClaimOp, reply: Verdict) -> bool:
    """True if this call acquired the key, also if its first reply was lost; else its owner held it before.

    A fence is its server's time, so a fence that the server's clock had not reached when the call was sent is the
    call's own (see `ClockBound`). A claim of another process under the same name, made in between, looks the same.
    """
    return reply.fresh or (hasattr(op, "floor_us") and reply.fence > op.floor_us)


def reply_to_follower(reply: Reply, owner: bytes) -> Reply:
    """Return the reply for a claimant that arrives directly after a claimant, the `owner`, that got `reply`.

    The reply is not `fresh`: the store does not know this claimant, so it cannot notify it when the key is freed.
    """
    if isinstance(reply, Verdict) and reply.outcome is Outcome.ACQUIRED:
        verdict = Verdict(
            Outcome.IN_PROGRESS, fence=reply.fence, attempt=reply.attempt, left_ms=reply.left_ms, fresh=False
        )
        verdict.present = owner
        return verdict
    return reply


def copy_of(error: BaseException) -> BaseException:
    """Return an instance of the error for one waiter: a shared exception would collect every waiter's traceback."""
    if isinstance(error, UnavailableError):
        kind = type(error) if isinstance(error, StoreRefusal) else UnavailableError
        return kind(*error.args, retry_after=error.retry_after)
    return error


def give(loop: asyncio.AbstractEventLoop, op: Op, reply: Reply, witness: Witness | None) -> Reply:
    """Give a reply to a witness, which may change it, and to the operation's caller; return it.

    Both may run code that is not the engine's. If it raises, the loop's exception handler is called, the caller
    gets the error, and the other operations of the batch get their replies all the same.
    """
    try:
        if witness is not None:
            reply = witness(op, reply)
        if not op.future.done():
            op.take(reply)
    except (Exception, asyncio.CancelledError) as fault:  # noqa: BLE001 -- it is reported
        give_error(loop, op, reported(loop, op, fault))
    return reply


def give_error(loop: asyncio.AbstractEventLoop, op: Op, error: BaseException) -> None:
    """Give an error to an operation's caller; see `give`."""
    try:
        if not op.future.done():
            op.fail(error)
    except (Exception, asyncio.CancelledError) as fault:  # noqa: BLE001 -- it is reported
        reported(loop, op, fault)


def reported(loop: asyncio.AbstractEventLoop, op: Op, fault: BaseException) -> Exception:
    """Report an error that was raised while an operation was answered to the loop; return its caller's error."""
    what = f"fastdedup could not deliver the answer to an operation ({op.verb.value})"
    loop.call_exception_handler({"message": what, "exception": fault})
    return fault if isinstance(fault, Exception) else RuntimeError(what)


_OUTCOMES: Final = {
    Code.REENTERED: Outcome.ACQUIRED,
    Code.TAKEN: Outcome.ACQUIRED,
    Code.IN_PROGRESS: Outcome.IN_PROGRESS,
    Code.SUCCEEDED: Outcome.SUCCEEDED,
    Code.FAILED: Outcome.FAILED,
    Code.MISMATCH: Outcome.MISMATCH,
}


def verdict(code: int, record: bytes, now_ms: int) -> Verdict | Code:
    """Return the answer to a claim from a script's code and the record that the claim found."""
    if code == Code.UNKNOWN:
        return Verdict(Outcome.UNKNOWN)
    if code == Code.FOREIGN or not is_record(record):
        return Code.FOREIGN
    stored = decode(record, now_ms)
    found = Verdict(
        _OUTCOMES[Code(code)],
        fence=stored.fence,
        attempt=stored.attempt,
        left_ms=max(stored.left_ms, 0),
        payload=stored.payload if code in (Code.SUCCEEDED, Code.FAILED) else b"",
        fresh=code != Code.REENTERED,
    )
    if code == Code.TAKEN:
        found.former = stored.payload  # a record that was just acquired has no payload of its own
    elif code != Code.REENTERED:
        found.present = stored.owner
    return found


def former_trace(verdict: Verdict) -> bytes:
    """Return the ids of the trace and the span of the run before: the first one, the one under way, or the attempt
    that was taken over. Empty if its record does not have them.
    """
    if verdict.former:
        return trace_of(read_holding(verdict.former).owner)
    return trace_of(verdict.present) if hasattr(verdict, "present") else b""
