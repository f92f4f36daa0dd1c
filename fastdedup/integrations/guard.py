"""A route's rule together with the `Dedup`s that it needs, for code that runs in the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

from ..claim import Claim
from ..core.calls import ClaimCall
from ..gateway import Dedup
from ..keys import Fingerprint
from ..model import Outcome
from ..web.forms import redeemed_subject, refusal_of_another
from ..web.record_keys import SCOPE
from ..web.response import ResponseCodec
from ..web.rules import Rule

_HEAD_ROOM = 64 * 1024
"""The bytes that a stored response's status and headers may have beside its body."""


class RecordSettings(TypedDict):
    """The settings of the `Dedup` in which a rule's responses are stored."""

    lease: float | None
    ttl: float | None
    failure_ttl: float | None
    codec: ResponseCodec
    max_result: int


def record_settings(rule: Rule, codec: ResponseCodec) -> RecordSettings:
    """Return the settings that a rule asks for, for `Dedup.scoped`."""
    return {
        "lease": rule.lease,
        "ttl": rule.ttl,
        "failure_ttl": rule.failure_ttl,
        "codec": codec,
        "max_result": rule.max_response + _HEAD_ROOM,
    }


class Guard:
    """A route's rule, and the two `Dedup`s with its settings: for keys and for tokens.

    Args:
        dedup: the application's `Dedup`.
        rule: the rule.
        codec: the codec of its responses.
    """

    __slots__ = ("dedup", "forms", "rule")

    def __init__(self, dedup: Dedup, rule: Rule, codec: ResponseCodec | None = None) -> None:
        self.rule = rule
        settings = record_settings(rule, codec or ResponseCodec())
        self.dedup = dedup.scoped(SCOPE, **settings)
        self.forms = dedup.scoped(**settings)  # the namespace in which the application issues its tokens

    async def claim(self, name: str, mark: Fingerprint, *, owns_renewal: bool = False) -> Claim:
        """Claim a record of `Rule.identify`. Raises what `Dedup.claim` raises.

        `owns_renewal`: see `ClaimCall.owns_renewal`.
        """
        rule = self.rule
        # Not by `patiently`, which takes a coroutine more.
        call = self.dedup.claim(name, fingerprint=mark, renew=rule.renew)
        call.owns_renewal = owns_renewal
        if rule.wait:
            call.will_wait = True
        found = await call
        if rule.wait and found.outcome is Outcome.IN_PROGRESS:
            return await self.dedup.claim(name, fingerprint=mark, wait=rule.wait, renew=rule.renew)
        return found

    async def redeem(self, token: str, subject: str | None) -> Claim:
        """Redeem a form's token for a subject of `issued_subject`.

        Raises:
            FormRefused: the token is another subject's.
            DedupError: any error of `Tokens.redeem`.
        """
        rule, who = self.rule, redeemed_subject(subject)
        found = await patiently(
            lambda wait: self.forms.tokens.redeem(token, who, wait=wait, renew=rule.renew), rule.wait
        )
        if found.outcome is Outcome.MISMATCH:
            record = await self.forms.get(token, "token")
            raise refusal_of_another(None if record is None else record.state)
        return found


async def patiently(claim: Callable[[float], ClaimCall], wait: float) -> Claim:
    """Claim, and wait for an owner at work only: while the store is unavailable a request is refused at once."""
    first = claim(0.0)
    first.will_wait = wait > 0.0
    found = await first
    return await claim(wait) if wait and found.outcome is Outcome.IN_PROGRESS else found
