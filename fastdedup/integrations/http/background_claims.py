"""The claims of a route for WSGI, Flask and Django: made, renewed and settled in the background thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from ...claim import Claim as AsyncClaim
from ...errors import DedupError
from ...keys import Fingerprint
from ...sync import Claim, Dedup
from ...sync.background import BackgroundDedup, Bound
from ...sync.claim import take_back
from ...web.recorder import Marks, Recorder
from ...web.response import ResponseCodec
from ...web.route_claims import RouteClaims
from ...web.rules import Rule
from .settling import HOLD, settle_by

T = TypeVar("T")
Make = Callable[[str, tuple[str, Fingerprint]], Awaitable[Claim | None]]
"""A function that claims: called with an Idempotency-Key, and with what `Rule.identify` returned for it."""


async def run_in_background(
    background: BackgroundDedup,
    make: Callable[[], Awaitable[T]],
    seconds: float,
    discard: Callable[[T], None] | None = None,
    *,
    settles: bool = False,
    blocks: bool,
) -> T:
    """Do something with the `Dedup`, in its thread. Arguments as for `LoopThread.run`.

    `blocks`: block the caller's thread, so that `drive` runs it without an event loop; else it is awaited.
    """
    if blocks:
        return background.run(make, seconds, discard, settles=settles)
    return await background.arun(make, seconds, discard, settles=settles)


async def settle_in_background(claim: Claim, recorder: Recorder, *, blocks: bool) -> Marks | None:
    """Settle a claim by its response; return the response's marks, or None if the claim was lost.

    `blocks`: see `run_in_background`.
    """
    response = recorder.end()
    try:
        return await run_in_background(
            claim.background, lambda: settle_by(recorder, response), HOLD, settles=True, blocks=blocks
        )
    except DedupError as error:  # the background thread is stuck or dead; the work is done
        return recorder.failed(error)


class BackgroundClaims:
    """A route's rule, and its claims in the background thread of each process.

    Args:
        gate: returns the present `Dedup`: tests have several.
        rule: the rule.
    """

    __slots__ = ("_bound", "_gate", "rule")

    def __init__(self, gate: Callable[[], Dedup], rule: Rule) -> None:
        self.rule = rule
        self._gate = gate
        # Mutable: the claims, and the `Dedup` that they were made of.
        self._bound: tuple[Dedup, Bound[RouteClaims]] | None = None

    def present(self) -> Bound[RouteClaims]:
        """Return the claims of the present `Dedup`.

        Raises:
            ConfigError: the rule's settings cannot be used with it. Also any error of `gate`.
        """
        dedup = self._gate()
        if self._bound is None or self._bound[0] is not dedup:
            bound = dedup.bind(lambda one: RouteClaims(one, self.rule, ResponseCodec(spelled=True)))
            self._bound = (dedup, bound)
        return self._bound[1]

    def claim(self, name: str, mark: Fingerprint, *, blocks: bool = True) -> Awaitable[Claim]:
        """Claim a record of `Rule.identify`. Raises what `Dedup.claim` raises. `blocks`: see `run_in_background`."""
        return self._make(lambda claims: claims.claim(name, mark, owns_renewal=False), blocks)

    def redeem(self, token: str, subject: str | None, *, blocks: bool = True) -> Awaitable[Claim]:
        """Redeem a form's token. See `RouteClaims.redeem`."""
        return self._make(lambda claims: claims.redeem(token, subject), blocks)

    async def _make(self, ask: Callable[[RouteClaims], Awaitable[AsyncClaim]], blocks: bool) -> Claim:
        bound = self.present()
        background, claims = bound.get()

        async def made() -> Claim:
            return Claim(background, await ask(claims))

        seconds = bound.per_process.seconds + self.rule.wait
        return await run_in_background(
            background, made, seconds, lambda claim: take_back(claim.asynchronous), blocks=blocks
        )
