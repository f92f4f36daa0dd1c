"""What a response makes of the claim under which it was made: recorded, or released. For every integration."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ..claim import Claim
from ..errors import ClaimLostError, DedupError, ResultTooLargeError, UnavailableError, UsageError
from ..events import log
from ..gateway import Dedup
from ..web.answers import Settling, settling_of
from ..web.response import DEGRADED, UNSTORED, Response
from ..web.rules import Rule

HOLD = 1.0
"""Seconds for which a response waits to be stored while the store is unavailable. Then it is sent, marked, and
storing it goes on."""
HEAD_ROOM = 64 * 1024
"""Bytes that a response's status and headers may take in the store beside its body."""
Marks = list[tuple[bytes, bytes]]
"""Headers that say how a response stands."""


@dataclass(slots=True)
class HeldClaim:
    """The claim that a request holds, and by which rule it is settled."""

    claim: Claim
    rule: Rule
    dedup: Dedup
    docs: str | None
    mark: bytes = b""
    """The request's fingerprint, where the record does not hold it."""


async def settle(held: HeldClaim, response: Response, *, undone: bool = False) -> Marks | None:
    """Settle by what is to be stored of a response; returns its marks, or None where the claim was lost.

    Args:
        held: the claim.
        response: with the headers that are stored.
        undone: the handler has said that nothing was done: release, whatever the response is.
    """
    marks = [DEGRADED] if held.claim.degraded else []
    how = Settling.RELEASE if undone else settling_of(held.rule, response)
    if how is Settling.RELEASE:
        await release(held.claim)
        return marks
    try:
        await record(held.claim, how, response, within=HOLD)
    except ClaimLostError:
        log.warning("%s: another request took over while this one ran", held.claim.key)
        return None
    except UnavailableError:
        held.dedup.keep(record(held.claim, how, response))
        marks.append(UNSTORED)
    except UsageError as error:  # the handler has settled it itself, or the gate was closed
        log.warning("%s: this response is not stored: %s", held.claim.key, error)
        marks.append(UNSTORED)
    except asyncio.CancelledError:
        held.dedup.keep(record(held.claim, how, response))  # the effect has happened
        raise
    return marks


async def record(claim: Claim, how: Settling, response: Response, *, within: float | None = None) -> None:
    """Store a response as the claim's outcome. Raises as `Claim.complete`."""
    settle = claim.complete if how is Settling.COMPLETE else claim.fail
    try:
        await settle(response, within=within)
    except ResultTooLargeError:  # by its headers
        await settle(Response(response.status, (), b"", False, response.request), within=within)


async def release(claim: Claim) -> None:
    """Free the key; should that fail, it is free when the lease ends."""
    try:
        await claim.release()
    except UsageError:
        pass  # the handler has settled it itself
    except DedupError as error:
        log.warning("%s was not released, and is free when its lease ends: %s", claim.key, error)
