"""Claims in the background thread: they are renewed there, and settled by a response. No Django here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ...claim import Claim
from ...errors import DedupError
from ...events import log
from ...sync import Claim as SyncClaim
from ...sync.background import BackgroundDedup, Bound
from ...sync.claim import take_back
from ...web.response import UNSTORED, Response, ResponseCodec
from ...web.rules import Rule
from ..guard import Guard
from ..settling import HOLD, HeldClaim, Marks, release
from ..settling import settle as settled
from .bridge import Bridge
from .config import gate


@dataclass(slots=True)
class Hold:
    """A claim that a request holds, and its `BackgroundDedup`."""

    background: BackgroundDedup
    held: HeldClaim
    seconds: float
    """The longest that an operation takes, in seconds."""
    public: SyncClaim
    """The claim as a view sees it."""
    undone: bool = False
    """True where the view has said that nothing was done."""
    invalid: bool = False
    """True where a form had errors: nothing was done, unless the view redirects."""
    pending: bool = False
    """True while its framework has still to make the view's result a response, or a transaction has still to end."""
    within: bool = False
    """True where the view may run within the transaction of ATOMIC_REQUESTS, which ends after the view."""

    @property
    def rule(self) -> Rule:
        """The rule that settles it."""
        return self.held.rule


@dataclass(frozen=True, slots=True)
class ClaimAndHold:
    """The answer to a claim, and its `hold` where it was acquired."""

    claim: Claim
    hold: Hold | None


Ask = Callable[[Guard], Awaitable[Claim]]


class Guards:
    """Finds the guard of a rule, for the process's present `Dedup`."""

    __slots__ = ("_bound", "docs", "rule")

    def __init__(self, rule: Rule, docs: str | None) -> None:
        self.rule = rule
        self.docs = docs
        # Mutable: the guard, and its `Dedup`; tests have several.
        self._bound: tuple[object, Bound[Guard]] | None = None

    def bound(self) -> Bound[Guard]:
        """Return the guard's `Bound`. Raises what `gate` raises."""
        dedup = gate()
        if self._bound is None or self._bound[0] is not dedup:
            self._bound = (dedup, dedup.bind(lambda one: Guard(one, self.rule, ResponseCodec(spelled=True))))
        return self._bound[1]

    async def ask(
        self,
        bridge: Bridge,
        ask: Ask,
        *,
        path: str,
        docs: str | None = None,
        form: bool = False,
        mark: bytes = b"",
    ) -> ClaimAndHold:
        """Claim a key, or redeem a token. Raises what that raises."""
        bound = self.bound()
        background, guard = bound.get()
        dedup = guard.forms if form else guard.dedup

        async def claimed() -> Claim:
            claim = await ask(guard)
            claim._bind_body(None)
            return claim

        seconds = bound.per_process.seconds
        claim = await bridge.run(background, claimed, seconds + self.rule.wait, take_back(dedup))
        if not claim.acquired:
            return ClaimAndHold(claim, None)
        held = HeldClaim(claim, self.rule, dedup, docs, path, mark)
        return ClaimAndHold(claim, Hold(background, held, seconds, SyncClaim(background, claim)))


async def settle(bridge: Bridge, hold: Hold, response: Response) -> Marks | None:
    """Settle by a response; return the response's marks, or None where the claim was lost."""
    undone = hold.undone or (hold.invalid and not 300 <= response.status < 400)
    try:
        return await bridge.run(
            hold.background, lambda: _settle(hold.held, response, undone), hold.seconds + HOLD
        )
    except DedupError as error:  # the background thread is stuck or dead; the view has run
        log.error("%s: this response is not stored: %s", hold.held.claim.key, error)
        return [UNSTORED]


async def give_back(bridge: Bridge, hold: Hold) -> None:
    """Release the claim, as the view has failed: a retry runs again."""
    await bridge.run(hold.background, lambda: _give_back(hold.held), hold.seconds)


async def _give_back(held: HeldClaim) -> None:
    held.claim._unbind()
    await release(held.claim)


async def _settle(held: HeldClaim, response: Response, undone: bool) -> Marks | None:
    try:
        marks = await settled(held, response, undone=undone)
    finally:
        held.claim._unbind()
    if marks is None or response.whole or undone or UNSTORED in marks:
        return marks
    return [*marks, UNSTORED]
