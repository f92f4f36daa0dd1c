"""Abandoned work: a claim that takes over its key asks whether the work was done, before it is done again."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from .. import codec
from ..checks import check_takes, is_async, named
from ..claim import Claim
from ..downstream import beside_work
from ..errors import ConfigError, UnavailableError
from ..kernel.operations import Verdict
from ..kernel.owners import notes_of, owner_text
from ..kernel.records import read_holding
from ..model import Outcome
from .takeover import Resolution, Resolved, Takeover

Check = Callable[[Takeover], Awaitable[Resolution]]


def check_resolve(check: Any, *, asynchronous: bool = True, often: bool = False) -> Any:
    """Return the function of `resolve=`.

    `often`: for each claim; then its arguments are not counted, because that would take as long as a claim.

    Raises:
        ConfigError: it is not a function of one argument, or of the wrong sort (async in synchronous code).
    """
    if not callable(check):
        raise ConfigError(f"resolve must be a function that takes a Takeover, got {named(check)}")
    if is_async(check) and not asynchronous:
        raise ConfigError("resolve is an async function: in synchronous code give one that is not")
    if not often:
        check_takes(check, "resolve", "a Takeover")
    return check


def takeover_of(claim: Claim, attempt: int = 1) -> Takeover | None:
    """Return the argument of the check; None if no owner can have begun the work before.

    `attempt`: how often the work was begun by a message's own count, this time included. The store may have
    forgotten the key since.
    """
    verdict = claim.settlement.verdict
    attempt = max(attempt, verdict.attempt)
    if not claim.acquired or not (attempt > 1 or (claim.settlement.op.named and not verdict.fresh)):
        return None
    former = verdict.former
    last = read_holding(former) if former else None
    owner = None if last is None else owner_text(last.owner)
    return Takeover(
        key=claim.key,
        attempt=attempt,
        fence=verdict.fence,
        last_owner=owner,
        last_fence=None if last is None else last.fence,
        last_holder=None if owner is None else notes_of(owner).get("holder"),
        wire=claim.settlement.store_key,
    )


async def resolve(claim: Claim, check: Check, *, renews: bool) -> Claim:
    """If the key was held before, ask the check and settle the claim with its answer; return the caller's claim.

    Args:
        claim: the claim that was made with `resolve=`.
        check: the function of `resolve=`.
        renews: whether the lease is renewed afterwards too.

    Raises:
        ClaimLostError: the lease was lost while the check ran, which was then stopped.
        Exception: any error of the check; the claim is released.
    """
    takeover = takeover_of(claim)
    if takeover is None:
        renew_no_more(claim, renews)
        return claim
    claim.settlement.guard(asyncio.current_task())
    try:
        answer = await answer_of(check, takeover)
    except BaseException as error:
        await claim.settlement.leave(error, release=True)
        raise
    if claim.lost:
        await claim.settlement.leave(None)  # raises ClaimLostError
    return await settled_as(claim, answer, renews=renews)


async def settled_as(claim: Claim, answer: Resolution, *, renews: bool) -> Claim:
    """Settle a claim with the check's answer; return the caller's claim.

    Work that runs begins with a whole lease that certainly is its own, because the check has used a part of the one
    before, or has outlasted it.

    Raises:
        ClaimLostError: the lease was lost while the check ran, or before it was renewed.
        ResultError, ResultTooLargeError: the answer's result cannot be stored. A failure is recorded in its place.
    """
    claim.settlement.guard(None)
    try:
        found = await settled(claim, answer)
        if found is claim:
            with suppress(UnavailableError):  # the rest of the lease must be enough
                await claim.renew()
            if claim.lost:
                raise claim.settlement.lost_error()
    except BaseException as error:
        await claim.settlement.leave(error)
        raise
    renew_no_more(claim, renews)
    return found


def renew_no_more(claim: Claim, renews: bool) -> None:
    """Stop renewing the lease, unless the caller asked for that."""
    if not renews:
        claim.settlement.renew_no_more()


async def answer_of(check: Check, takeover: Takeover) -> Resolution:
    """Ask the check.

    Raises:
        ConfigError: the check is not async, or its answer is not a Resolution.
        Exception: any error of the check.
    """
    with beside_work():
        answer = check(takeover)
        if not inspect.isawaitable(answer):
            raise ConfigError(
                f"resolve must be an async function here, got one that returned {named(answer)}: write async def"
            )
        return check_answer(await answer)


def check_answer(answer: Any) -> Resolution:
    """Return a check's answer.

    Raises:
        ConfigError: the answer is not a Resolution; the claim is then released.
    """
    if inspect.isawaitable(answer):
        answer.close() if inspect.iscoroutine(answer) else None
        raise ConfigError(
            "resolve returned something to await: in synchronous code give a function that is not async"
        )
    if not isinstance(answer, Resolution):
        raise ConfigError(
            f"resolve must return Resolution.done(result), .not_done() or .unknown(error), got {named(answer)}"
        )
    return answer


async def settled(claim: Claim, answer: Resolution) -> Claim:
    """Settle a claim with the check's answer. Returns the claim itself if the work has to run."""
    if answer.kind is Resolved.NOT_DONE:
        return claim
    done = answer.kind is Resolved.DONE
    await (claim.complete(answer.value) if done else claim.settlement.record(answer.value, succeeded=False))
    return replayed(claim, answer.value, succeeded=done)


def replayed(claim: Claim, value: Any, *, succeeded: bool) -> Claim:
    """Return the answer for duplicates of this claim from now on."""
    gate, former = claim.settlement.gate, claim.settlement.verdict
    settings = gate.settings
    encode = partial(codec.encode, json_of=claim.settlement.json_of) if succeeded else codec.encode_error
    found = Verdict(
        Outcome.SUCCEEDED if succeeded else Outcome.FAILED,
        fence=former.fence,
        attempt=former.attempt,
        payload=encode(settings.codec, value, settings.max_result),
        degraded=former.degraded,
    )
    return Claim(gate, claim.settlement.op, found)
