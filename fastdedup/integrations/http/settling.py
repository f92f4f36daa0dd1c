"""Settles a claim by the response of its handler: the response is stored, or the key released."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from ...claim import Claim
from ...errors import ClaimLostError, DedupError, UsageError
from ...web.answers import Settling
from ...web.recorder import Marks, Recorder
from ...web.response import Response

_RELEASE: Final = Settling.RELEASE  # naming an enum's member through its class costs 50 ns on Python 3.11
_COMPLETE: Final = Settling.COMPLETE

_LOSS: Final = (
    "responses that were not recorded",
    "%s: a response was not recorded, so its key may run again once its lease has ended: %s",
)
HOLD = 1.0
"""Seconds that a response waits to be stored while the store is unavailable. Then it is sent with a mark, and storing
goes on."""


def settle(recorder: Recorder) -> Coroutine[Any, Any, Marks | None]:
    """Settle a claim by its response; return the response's marks, or None if the claim was lost."""
    return settle_by(recorder, recorder.end())


async def settle_by(recorder: Recorder, response: Response) -> Marks | None:
    """Do what `settle` does, by the response with which `Recorder.end` was answered.

    It is stored within `HOLD` seconds. While the store is unavailable, storing goes on, and the marks say so.
    """
    claim, how = recorder.claim, recorder.how
    if not claim.lost:
        claim.settlement.guard(None)  # the work is done: only the store knows now
    if how is _RELEASE:
        lost = await release(claim)
        return recorder.marks() if lost is None else recorder.failed(lost)
    try:
        stored = await claim.settlement.record(
            response if recorder.kept is None else recorder.kept,
            succeeded=how is _COMPLETE,
            done=False,
            instead=lambda error: response.without_content(),  # its headers are too large
            within=HOLD,
            alone=_LOSS,
        )
        return recorder.marks(stored=stored)
    except DedupError as error:  # lost; or the handler has settled it itself, or the `Dedup` was closed
        return recorder.failed(error)


async def release(claim: Claim) -> ClaimLostError | None:
    """Free the key once the store answers. Return the error if the claim was lost."""
    failed = await claim.settlement.free()
    if isinstance(failed, ClaimLostError):
        return failed
    if failed is not None and not isinstance(failed, UsageError):  # the handler may have settled it itself
        text = "%s was not released, and is free once the store answers, or its lease has ended: %s"
        claim.settlement.warn("keys that were not released", text, failed)
    return None
