"""What becomes of a claim, in the gate's thread: it is renewed, and settled by a response. No Django here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ...claim import Claim
from ...errors import DedupError
from ...events import log
from ...sync import Claim as SyncClaim
from ...sync.background import BackgroundDedup, Bound
from ...sync.claim import take_back
from ...web.answers import storable
from ...web.response import UNSTORED, Response
from ...web.rules import Rule
from ..guard import Guard
from ..settling import HOLD, HeldClaim, Marks, release
from ..settling import settle as settled
from .bridge import Bridge
from .config import gate


@dataclass(slots=True)
class Hold:
    """A claim that a request holds, and where its gate lives."""

    background: BackgroundDedup
    held: HeldClaim
    seconds: float
    """That an operation of the gate takes at the most."""
    public: SyncClaim
    """The claim as a view sees it."""
    undone: bool = False
    """The view has said that nothing was done."""
    invalid: bool = False
    """A form of the view's had errors, so nothing was done unless the view redirects."""

    @property
    def rule(self) -> Rule:
        """By which it is settled."""
        return self.held.rule


@dataclass(frozen=True, slots=True)
class ClaimAndHold:
    """The answer to a claim: a `hold` where it was acquired."""

    claim: Claim
    hold: Hold | None


Ask = Callable[[Guard], Awaitable[Claim]]


class Guards:
    """The guard of a rule, of the process's present gate."""

    __slots__ = ("_bound", "docs", "rule")

    def __init__(self, rule: Rule, docs: str | None) -> None:
        self.rule = rule
        self.docs = docs
        # Mutable: the guard, and of which gate it is; tests have several.
        self._bound: tuple[object, Bound[Guard]] | None = None

    def bound(self) -> Bound[Guard]:
        """Return where the guard is found. Raises as `gate`."""
        dedup = gate()
        if self._bound is None or self._bound[0] is not dedup:
            self._bound = (dedup, dedup.bind(lambda one: Guard(one, self.rule)))
        return self._bound[1]

    async def ask(self, bridge: Bridge, ask: Ask, *, form: bool = False, mark: bytes = b"") -> ClaimAndHold:
        """Claim a key, or redeem a token. Raises as that does."""
        bound = self.bound()
        background, guard = bound.get()
        dedup = guard.forms if form else guard.dedup

        async def claimed() -> Claim:
            claim = await ask(guard)
            claim.bind_body(None)
            return claim

        seconds = bound.per_process.seconds
        claim = await bridge.run(background, claimed, seconds + self.rule.wait, take_back(dedup))
        if not claim.acquired:
            return ClaimAndHold(claim, None)
        held = HeldClaim(claim, self.rule, dedup, self.docs, mark)
        return ClaimAndHold(claim, Hold(background, held, seconds, SyncClaim(background, claim)))


async def settle(bridge: Bridge, hold: Hold, response: Response) -> Marks | None:
    """Settle by a response; returns how it is to be marked, or None where the claim was lost."""
    undone = hold.undone or (hold.invalid and not 300 <= response.status < 400)
    try:
        return await bridge.run(
            hold.background, lambda: _settle(hold.held, response, undone), hold.seconds + HOLD
        )
    except DedupError as error:  # the gate's thread is stuck or dead; what was done was done
        log.error("%s: this response is not stored: %s", hold.held.claim.key, error)
        return [UNSTORED]


async def give_back(bridge: Bridge, hold: Hold) -> None:
    """Release: the view has failed, and a retry runs again."""
    await bridge.run(hold.background, lambda: _give_back(hold.held), hold.seconds)


async def _give_back(held: HeldClaim) -> None:
    held.claim.unbind()
    await release(held.claim)


async def _settle(held: HeldClaim, response: Response, undone: bool) -> Marks | None:
    stored = storable(held.rule, response)
    try:
        marks = await settled(held, stored, undone=undone)
    finally:
        held.claim.unbind()
    if marks is None or response.whole or undone or UNSTORED in marks:
        return marks
    return [*marks, UNSTORED]
