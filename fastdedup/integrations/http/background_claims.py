"""The claims of a route for WSGI, Flask and Django: made, renewed and settled in the background thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from ...claim import Claim as AsyncClaim
from ...sync import Claim, Dedup
from ...sync.background import BackgroundDedup
from ...sync.claim import take_back
from ...web.response import ResponseCodec
from ...web.route_claims import RouteClaims
from ...web.rules import Rule

T = TypeVar("T")
Ask = Callable[[RouteClaims], Awaitable[AsyncClaim]]
"""A function that claims a key, or redeems a token, in the background thread."""


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


class BackgroundClaims:
    """A route's rule, and its claims in the background thread of each process.

    Attributes:
        rule: the rule.
        seconds: the longest that an operation takes, in seconds.

    Raises:
        ConfigError: the rule's settings cannot be used with this `Dedup`.
    """

    __slots__ = ("_bound", "rule", "seconds")

    def __init__(self, dedup: Dedup, rule: Rule) -> None:
        self.rule = rule
        self.seconds = dedup.per_process.seconds
        self._bound = dedup.bind(lambda one: RouteClaims(one, rule, ResponseCodec(spelled=True)))

    async def make(self, ask: Ask, *, blocks: bool) -> Claim:
        """Claim a key, or redeem a token. Raises what that raises. `blocks`: see `run_in_background`."""
        background, claims = self._bound.get()

        async def made() -> Claim:
            return Claim(background, await ask(claims))

        seconds = self.seconds + self.rule.wait
        return await run_in_background(
            background, made, seconds, lambda claim: take_back(claim.asynchronous), blocks=blocks
        )
