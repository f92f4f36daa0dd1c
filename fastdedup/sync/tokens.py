"""One-time tokens for synchronous code."""

from __future__ import annotations

from typing import Any

from ..checks import Seconds
from ..claim import Claim as AsyncClaim
from ..core.options import ClaimOptions
from ..model import Outcome
from ..tokens import Tokens as AsyncTokens
from .background import Bound
from .claim import Claim, answered


class Tokens:
    """`dedup.tokens`: issues, consumes and redeems one-time tokens. See `fastdedup.tokens.Tokens`."""

    def __init__(self, tokens: Bound[AsyncTokens]) -> None:
        self.bound = tokens
        """For integrations: `background, tokens = bound.get()` returns this process's asyncio `Tokens`."""

    def _consume(self, token: str, subject: Any, *, owner: str | None) -> Outcome:
        background, tokens = self.bound.get()
        use = tokens.use(token, subject, owner)
        return background.make(use, self.bound.per_process.seconds, lambda claim: claim, _take_back).outcome

    def _redeem(self, token: str, subject: Any, *options: Any) -> Claim:
        return self.redeem_with(ClaimOptions(*options), token, subject)

    def redeem_with(self, options: ClaimOptions, token: str, subject: Any = None) -> Claim:
        """Do what `redeem` does, for an integration that makes its options once."""
        return answered(self.bound, lambda it: it.redeem_with(options, token, subject), options.renew)

    # The rest of the class is written by scripts/write_sync.py, which `make format` runs.

    def issue(self, subject: Any = None, ttl: Seconds | None = None) -> str:
        """Return a new token: URL-safe text of 192 random bits.

        Args:
            subject: the user or thing that the token is for (text or any JSON-able value). Redeeming it for
                another subject, or for no subject, is a MISMATCH.
            ttl: seconds in which the token can be redeemed (`token_ttl` by default).

        Raises:
            UnavailableError: neither the store nor the policy answered.
        """
        return self.bound.run(lambda it: it.issue(subject, ttl))

    def consume(self, token: str, subject: Any = None, *, owner: str | None = None) -> Outcome:
        """Use a token in one step. Returns ACQUIRED once, and SUCCEEDED afterwards.

        Returns MISMATCH for another subject, and UNKNOWN for a token that was never issued or has expired.
        For an effect that may fail half-way use `redeem`: a consumed token is gone even if the effect then fails.

        SUCCEEDED is never the answer for a use that is undone later: if another process used the token less than two
        timeouts ago, this waits until that use is older or gone, for at most four timeouts.

        Args:
            token: the text that `issue` returned and the client sent.
            subject: the subject that the token was issued for. A token that was issued for a subject is a MISMATCH
                for any other subject, and for a caller that names no subject.
            owner: your own name for this use, 1 to 63 bytes. The same name gets ACQUIRED again, for example after a
                lost reply.

        Raises:
            UnavailableError: neither the store nor the policy answered. A use that got no answer is undone
                before the error is raised, within one further `timeout`; or later, when the store answers again.
                With `owner=` it is kept, so that the same owner can ask again.
            ShortfallError: too few replicas confirmed the use (`replicas=`); it is undone in the same way.
        """
        return self._consume(token, subject, owner=owner)

    def redeem(
        self,
        token: str,
        subject: Any = None,
        *,
        owner: str | None = None,
        lease: Seconds | None = None,
        ttl: Seconds | None = None,
        wait: Seconds | None = None,
        renew: bool | None = None,
    ) -> Claim:
        """Claim a token: do the work, then call `complete(result)`; a second click gets that result.

        Settle it yourself, or enter it with `with`; the arguments are those of `Dedup.claim`. A token that was
        redeemed and released, or whose redeemer crashed, can be redeemed again by its subject for another `ttl`
        seconds, also past its `token_ttl`: its form was sent in time.

        Like `consume`, it waits while the token is used without a result and another process may still undo that use.
        """
        return self._redeem(token, subject, owner, lease, ttl, wait, renew)


def _take_back(claim: AsyncClaim) -> None:
    """Take back a use whose caller was interrupted before its answer reached him; a named caller can ask again."""
    if claim.acquired and not claim.settlement.op.named:
        claim.settlement.gate.release_later(*claim.settlement.held_key, consumed=True)
