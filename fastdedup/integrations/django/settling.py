"""Claims in the background thread: they are renewed there, and settled by a response. No Django here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ...claim import Claim
from ...errors import DedupError
from ...sync import Claim as SyncClaim
from ...sync.background import BackgroundDedup, Bound
from ...sync.claim import take_back
from ...web.recorder import Marks, Recorder
from ...web.response import ResponseCodec
from ...web.rules import Rule
from ..guard import Guard
from ..settling import HOLD, release
from ..settling import settle as settled
from .bridge import Bridge
from .config import gate


@dataclass(slots=True)
class Hold:
    """A claim that a request holds: its response, and its `BackgroundDedup`."""

    background: BackgroundDedup
    recorder: Recorder
    seconds: float
    """The longest that an operation takes, in seconds."""
    public: SyncClaim
    """The claim as a view sees it."""
    pending: bool = False
    """True while its framework has still to make the view's result a response, or a transaction has still to end."""
    within: bool = False
    """True where the view may run within the transaction of ATOMIC_REQUESTS, which ends after the view."""


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
        mark: bytes = b"",
    ) -> ClaimAndHold:
        """Claim a key, or redeem a token. Raises what that raises."""
        bound = self.bound()
        background, guard = bound.get()

        async def claimed() -> Claim:
            claim = await ask(guard)
            claim.settlement.guard(None)
            return claim

        seconds = bound.per_process.seconds
        claim = await bridge.run(background, claimed, seconds + self.rule.wait, take_back)
        if not claim.acquired:
            return ClaimAndHold(claim, None)
        recorder = Recorder(claim, self.rule, docs, path, mark)
        return ClaimAndHold(claim, Hold(background, recorder, seconds, SyncClaim(background, claim)))


async def settle(bridge: Bridge, hold: Hold) -> Marks | None:
    """Settle by the response; return the response's marks, or None where the claim was lost."""
    try:
        return await bridge.run(
            hold.background, lambda: _settle(hold.recorder), hold.seconds + HOLD, settles=True
        )
    except DedupError as error:  # the background thread is stuck or dead; the view has run
        hold.recorder.claim.settlement.warn(
            "responses that were not recorded", "%s: its response is not stored: %s", error
        )
        return hold.recorder.marks(stored=False)


async def give_back(bridge: Bridge, hold: Hold) -> None:
    """Release the claim, as the view has failed: a retry runs again."""
    await bridge.run(hold.background, lambda: _give_back(hold.recorder.claim), hold.seconds, settles=True)


async def _give_back(claim: Claim) -> None:
    claim.settlement.unguard()
    await release(claim)


async def _settle(recorder: Recorder) -> Marks | None:
    try:
        return await settled(recorder)
    finally:
        recorder.claim.settlement.unguard()
