"""A route's rule together with the `Dedup`s that it needs, for code that runs in the event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..claim import Claim
from ..gateway import Dedup
from ..model import Outcome
from ..web.header import KeyMissing
from ..web.request import Named, Request
from ..web.response import ResponseCodec
from ..web.rules import Rule
from .settling import HEAD_ROOM


class Guard:
    """A route's rule, and the two `Dedup`s with its settings: for keys and for tokens.

    Args:
        dedup: the application's `Dedup`.
        rule: the rule.
        codec: the codec of its responses.
    """

    __slots__ = ("_codec", "dedup", "forms", "rule")

    def __init__(self, dedup: Dedup, rule: Rule, codec: ResponseCodec | None = None) -> None:
        self.rule = rule
        self._codec = codec or ResponseCodec()
        self.dedup = self._with_settings(dedup, "http")
        self.forms = self._with_settings(
            dedup, None
        )  # the namespace in which the application issues its tokens

    def _with_settings(self, dedup: Dedup, name: str | None) -> Dedup:
        rule = self.rule
        return dedup.scoped(
            name,
            lease=rule.lease,
            ttl=rule.ttl,
            failure_ttl=rule.failure_ttl,
            codec=self._codec,
            max_result=rule.max_response + HEAD_ROOM,
        )

    def check(self, key: str | None) -> None:
        """Check a request's key; None stands for a request without a key.

        Raises:
            KeyMissing: the rule requires a key.
            BadKey: the key does not have the published format.
        """
        if key is not None:
            self.rule.check_key(key)
        elif self.rule.required:
            raise KeyMissing

    async def claim(self, request: Request, principal: Named, key: str) -> Claim:
        """Claim a key for its caller, method and route. Raises what `scope_key` and `Dedup.claim` raise."""
        name = self.rule.scope_key(request.method, request.path, principal, key)
        rule, mark = self.rule, self.rule.mark(request)
        return await patiently(
            lambda wait: self.dedup.claim(name, fingerprint=mark, wait=wait, renew=rule.renew), rule.wait
        )

    async def redeem(self, token: str, subject: object, *, wait: float) -> Claim:
        """Redeem a form's token. Raises what `Tokens.redeem` raises."""
        renew = self.rule.renew
        return await patiently(
            lambda wait: self.forms.tokens.redeem(token, subject, wait=wait, renew=renew), wait
        )


async def patiently(claim: Callable[[float], Awaitable[Claim]], wait: float) -> Claim:
    """Claim, and wait for an owner at work only: while the store is unavailable a request is refused at once."""
    found = await claim(0.0)
    return await claim(wait) if wait and found.outcome is Outcome.IN_PROGRESS else found
