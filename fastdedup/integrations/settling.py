"""Settles a claim by the response of its handler: the response is stored, or the key released."""

from __future__ import annotations

import asyncio
from typing import Final

from ..claim import Claim
from ..errors import (
    ClaimLostError,
    DedupError,
    ResultError,
    ResultTooLargeError,
    UnavailableError,
    UsageError,
)
from ..web.answers import Settling
from ..web.recorder import Marks, Recorder
from ..web.response import Response

_RELEASE: Final = Settling.RELEASE  # naming an enum's member through its class costs 50 ns on Python 3.11
_COMPLETE: Final = Settling.COMPLETE

HOLD = 1.0
"""Seconds that a response waits to be stored while the store is unavailable. Then it is sent with a mark, and storing
goes on."""


async def settle(recorder: Recorder) -> Marks | None:
    """Settle a claim by its response; return the response's marks, or None where the claim was lost."""
    claim = recorder.claim
    if not claim.lost:
        claim.settlement.guard(None)  # the work is done: only the store knows now
    response, how = recorder.end(), recorder.how
    if how is _RELEASE:
        lost = await release(claim)
        return recorder.marks() if lost is None else recorder.failed(lost)
    try:
        return recorder.marks(stored=await store(claim, how, response))
    except DedupError as error:  # lost; or the handler has settled it itself, or the `Dedup` was closed
        return recorder.failed(error)


async def store(claim: Claim, how: Settling, response: Response) -> bool:
    """Store a response, within `HOLD` seconds; return False where the store is unavailable, and storing goes on."""
    claim.settlement.goes_on = True
    try:
        await record(claim, how, response, within=HOLD)
    except UnavailableError:
        claim.settlement.gate.connection.keep(_record_after_all(claim, how, response))
        return False
    except asyncio.CancelledError:
        claim.settlement.gate.connection.keep(
            _record_after_all(claim, how, response)
        )  # the effect has happened
        raise
    return True


async def record(claim: Claim, how: Settling, response: Response, *, within: float | None = None) -> None:
    """Store a response as the claim's outcome. Raises what `Claim.complete` raises."""
    try:
        if how is _COMPLETE:
            await claim.complete(response, within=within)
        else:
            await claim.fail(response, within=within)
    except (ResultError, ResultTooLargeError):  # its headers are too large
        smaller = response.without_content()
    else:
        return
    try:
        if how is _COMPLETE:
            await claim.complete(smaller, within=within)
        else:
            await claim.fail(smaller, within=within)
    except (ResultError, ResultTooLargeError):
        pass  # not awaited here: compiled by mypyc, that crashes if it is cancelled
    else:
        return
    await claim.settlement.record_unstorable()


async def _record_after_all(claim: Claim, how: Settling, response: Response) -> None:
    """Store a response that nobody waits for any more, and say so where that was in vain."""
    claim.settlement.goes_on = False
    try:
        await record(claim, how, response)
    except DedupError as error:
        text = "%s: a response was not recorded, so its key may run again once its lease has ended: %s"
        claim.settlement.warn("responses that were not recorded", text, error)


async def release(claim: Claim) -> ClaimLostError | None:
    """Free the key, as soon as the store answers. Return the error where the claim was lost."""
    try:
        await claim.settlement.free()
    except UsageError:
        pass  # the handler has settled it itself
    except ClaimLostError as error:
        return error
    except DedupError as error:
        text = "%s was not released, and is free once the store answers, or its lease has ended: %s"
        claim.settlement.warn("keys that were not released", text, error)
    return None
