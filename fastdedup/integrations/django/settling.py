"""Claims in the background thread: they are renewed there, and settled by a response. No Django here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ...claim import Claim
from ...downstream import ClaimedWork, claimed_work, resumed
from ...sync import Claim as SyncClaim
from ...web.recorder import Marks, Recorder
from ...web.rules import Rule
from ..http.background_claims import BackgroundClaims, run_in_background, settle_in_background
from ..http.settling import release
from ..http.settling import settle as settled
from .bridge import Bridge
from .config import gate


@dataclass(slots=True)
class Hold:
    """A claim that a request holds, in the form that a view gets, and its response."""

    public: SyncClaim
    recorder: Recorder
    pending: int = 0
    """The status of a response that has still to be rendered; 500 before the framework has made it; else 0."""
    late: Callable[[], object] | None = None
    """Renders that response, and so settles the claim."""
    within: bool = False
    """True if the view may run within the transaction of ATOMIC_REQUESTS, which ends after the view."""
    work: ClaimedWork | None = None
    """The view's work, for the HTTP clients that it uses."""
    committed: bool | None = None
    """True once such a transaction has committed; None if there is none."""

    @contextmanager
    def working(self) -> Iterator[None]:
        """Run the view in a `with` block, or go on with its work: its response is rendered, or its stream is read."""
        if self.work is not None:
            with resumed(self.work):
                yield
        else:
            with claimed_work(self.recorder.claim.settlement.store_key) as self.work:
                yield


class DjangoClaims(BackgroundClaims):
    """A route's rule, and its claims by the process's present `Dedup`."""

    __slots__ = ("docs",)

    def __init__(self, rule: Rule, docs: str | None) -> None:
        super().__init__(gate, rule)
        self.docs = docs

    def hold(self, claim: SyncClaim, path: str, docs: str | None, mark: bytes = b"") -> Hold:
        """Return the hold of a request on a claim that it has acquired. Arguments as for `Recorder`."""
        return Hold(claim, Recorder(claim.asynchronous, self.rule, docs, path, mark))


async def settle(bridge: Bridge, hold: Hold) -> Marks | None:
    """See `settle_in_background`."""
    return await settle_in_background(hold.public, hold.recorder, blocks=bridge.blocks)


async def give_back(bridge: Bridge, hold: Hold) -> None:
    """Release the claim of a view that has failed: a retry runs again."""
    hold.recorder.settled = True
    background, claim = hold.public.background, hold.recorder.claim
    seconds = background.dedup.gate.connection.timeout
    await run_in_background(
        background, lambda: _give_back(claim), seconds, settles=True, blocks=bridge.blocks
    )


def settle_later(hold: Hold, *, failed: bool) -> None:
    """Settle, or release, without waiting for it, so that a finalizer may call this."""
    hold.public.background.post(lambda: _give_back(hold.recorder.claim) if failed else settled(hold.recorder))


async def _give_back(claim: Claim) -> None:
    claim.settlement.unguard()
    await release(claim)
