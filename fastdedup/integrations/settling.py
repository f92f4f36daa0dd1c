"""Settles a claim by the response of its handler: the response is recorded, or the key released."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from ..claim import Claim
from ..errors import ClaimLostError, DedupError, ResultTooLargeError, UnavailableError, UsageError
from ..events import log
from ..gateway import Dedup
from ..web.answers import Settling, settling_of, storable
from ..web.response import DEGRADED, UNSTORED, Response
from ..web.rules import Rule

HOLD = 1.0
"""Seconds that a response waits to be stored while the store is unavailable. Then it is sent with a mark, and storing
goes on."""
Marks = list[tuple[bytes, bytes]]
"""Headers that mark a response: degraded, or not stored."""


@dataclass(slots=True)
class HeldClaim:
    """The claim that a request holds, and the rule that settles it."""

    claim: Claim
    rule: Rule
    dedup: Dedup
    docs: str | None
    path: str
    """The request's path."""
    mark: bytes = b""
    """The request's fingerprint, where the record does not have it."""


async def settle(held: HeldClaim, response: Response, *, undone: bool = False) -> Marks | None:
    """Settle a claim by a response; return the response's marks, or None where the claim was lost.

    Args:
        held: the claim.
        response: the response, as the application gave it.
        undone: True where nothing was done, as the handler has said or as it did not run: release the claim.
    """
    marks = [DEGRADED] if held.claim.degraded else []
    how = Settling.RELEASE if undone else settling_of(held.rule, response, held.path)
    if how is Settling.RELEASE:
        await release(held.claim)
        return marks
    response = storable(held.rule, response)
    try:
        await record(held.claim, how, response, within=HOLD)
    except ClaimLostError as error:
        log.warning("this request's response is dropped: %s", error)
        return None
    except UnavailableError:
        held.dedup._namespace.connection.keep(record(held.claim, how, response))
        marks.append(UNSTORED)
    except UsageError as error:  # the handler has settled it itself, or the `Dedup` was closed
        log.warning("%s: this response is not stored: %s", held.claim.key, error)
        marks.append(UNSTORED)
    except asyncio.CancelledError:
        held.dedup._namespace.connection.keep(record(held.claim, how, response))  # the effect has happened
        raise
    return marks


async def record(claim: Claim, how: Settling, response: Response, *, within: float | None = None) -> None:
    """Store a response as the claim's outcome. Raises what `Claim.complete` raises."""
    settle = claim.complete if how is Settling.COMPLETE else claim.fail
    try:
        await settle(response, within=within)
    except ResultTooLargeError:  # its headers are too large
        await settle(replace(response, headers=(), body=b"", whole=False), within=within)


async def release(claim: Claim) -> None:
    """Free the key. Where that fails, the key is free when the lease ends."""
    try:
        await claim.release()
    except UsageError:
        pass  # the handler has settled it itself
    except DedupError as error:
        log.warning("%s was not released, and is free when its lease ends: %s", claim.key, error)
