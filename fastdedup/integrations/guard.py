"""A route's rule together with the `Dedup`s that it needs, for code that runs in the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

from ..claim import Claim
from ..claiming import claim_call
from ..core.calls import ClaimCall
from ..core.options import ClaimOptions
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

    __slots__ = ("_at_once", "_options", "dedup", "forms", "rule")

    def __init__(self, dedup: Dedup, rule: Rule, codec: ResponseCodec | None = None) -> None:
        self.rule = rule
        self._options = ClaimOptions(wait=rule.wait, renew=rule.renew)
        self._at_once = self._options.at_once
        settings = record_settings(rule, codec or ResponseCodec())
        self.dedup = dedup.scoped(SCOPE, **settings)
        self.forms = dedup.scoped(**settings)  # the namespace in which the application issues its tokens

    async def claim(self, name: str, mark: Fingerprint, *, owns_renewal: bool = False) -> Claim:
        """Claim a record of `Rule.identify`. Raises what `Dedup.claim` raises.

        `owns_renewal`: see `ClaimCall.owns_renewal`.
        """
        # Not by `patiently`, which takes a coroutine more.
        call = claim_call(self.dedup.gate, self._at_once, name, mark)
        call.owns_renewal = owns_renewal
        call.will_wait = waits = self.rule.wait > 0.0
        found = await call
        if waits and found.outcome is Outcome.IN_PROGRESS:
            return await claim_call(self.dedup.gate, self._options, name, mark)
        return found

    async def redeem(self, token: str, subject: str | None) -> Claim:
        """Redeem a form's token for a subject of `issued_subject`.

        Raises:
            FormRefused: the token is another subject's.
            DedupError: any error of `Tokens.redeem`.
        """
        who = redeemed_subject(subject)
        found = await patiently(
            lambda options: self.forms.tokens.redeem_with(options, token, who), self._options
        )
        if found.outcome is Outcome.MISMATCH:
            record = await self.forms.get(token, "token")
            raise refusal_of_another(None if record is None else record.state)
        return found


async def patiently(claim: Callable[[ClaimOptions], ClaimCall], options: ClaimOptions) -> Claim:
    """Claim, and wait for an owner at work only: while the store is unavailable a request is refused at once."""
    first = claim(options.at_once)
    first.will_wait = waits = options.seconds_to_wait > 0.0
    found = await first
    return await claim(options) if waits and found.outcome is Outcome.IN_PROGRESS else found
