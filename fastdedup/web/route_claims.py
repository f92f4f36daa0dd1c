"""The claims of a route: by a client's key, or by a form's token. For code that runs in the `Dedup`'s event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from ..claim import Claim
from ..claiming import claim_call
from ..core.calls import ClaimCall
from ..core.options import ClaimOptions
from ..gateway import Dedup
from ..keys import Fingerprint
from ..model import Outcome
from .forms import redeemed_subject, refusal_of_another
from .record_keys import SCOPE
from .response import ResponseCodec
from .rules import HEAD_ROOM, Rule


class RouteClaims:
    """A route's rule, and the two `Dedup`s with its settings: for keys and for tokens.

    Args:
        dedup: the application's `Dedup`.
        rule: the rule.
        codec: the codec of its responses.
    """

    __slots__ = ("_at_once", "_options", "dedup", "forms", "rule")

    def __init__(self, dedup: Dedup, rule: Rule, codec: ResponseCodec | None = None) -> None:
        self.rule = rule
        self._options = ClaimOptions(wait=rule.wait, renew=rule.renew)
        self._at_once = self._options.at_once
        scoped = partial(
            dedup.scoped,
            lease=rule.lease,
            ttl=rule.ttl,
            failure_ttl=rule.failure_ttl,
            codec=codec or ResponseCodec(),
            max_result=rule.max_response + HEAD_ROOM,
        )
        self.dedup = scoped(SCOPE)
        self.forms = scoped()  # the namespace in which the application issues its tokens

    def claim(self, name: str, mark: Fingerprint, *, owns_renewal: bool = True) -> Coroutine[Any, Any, Claim]:
        """Claim a record of `Rule.identify`. Raises what `Dedup.claim` raises.

        `owns_renewal`: see `ClaimCall.owns_renewal`.
        """
        return self._patiently(lambda options: claim_call(self.dedup.gate, options, name, mark), owns_renewal)

    async def redeem(self, token: str, subject: str | None) -> Claim:
        """Redeem a form's token for a subject of `issued_subject`.

        Raises:
            FormRefused: the token is another subject's.
            DedupError: any error of `Tokens.redeem`.
        """
        who = redeemed_subject(subject)
        found = await self._patiently(lambda options: self.forms.tokens.redeem_with(options, token, who))
        if found.outcome is Outcome.MISMATCH:
            record = await self.forms.get(token, "token")
            raise refusal_of_another(None if record is None else record.state)
        return found

    async def _patiently(
        self, claim: Callable[[ClaimOptions], ClaimCall], owns_renewal: bool = False
    ) -> Claim:
        """Claim, and wait for an owner at work only: while the store is unavailable a request is refused at once."""
        first = claim(self._at_once)
        first.owns_renewal = owns_renewal
        first.will_wait = waits = self.rule.wait > 0.0
        found = await first
        return await claim(self._options) if waits and found.outcome is Outcome.IN_PROGRESS else found
