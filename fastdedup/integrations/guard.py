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


PatientOptions = tuple[ClaimOptions, ClaimOptions | None]
"""How to claim a request's key, and how to claim it again if an owner is at work; None: not again."""


def patient_options(rule: Rule) -> PatientOptions:
    """Return how a rule's requests claim their keys."""
    at_once = ClaimOptions(renew=rule.renew)
    return at_once, at_once._replace(wait=rule.wait) if rule.wait else None


class Guard:
    """A route's rule, and the two `Dedup`s with its settings: for keys and for tokens.

    Args:
        dedup: the application's `Dedup`.
        rule: the rule.
        codec: the codec of its responses.
    """

    __slots__ = ("_options", "dedup", "forms", "rule")

    def __init__(self, dedup: Dedup, rule: Rule, codec: ResponseCodec | None = None) -> None:
        self.rule = rule
        self._options = patient_options(rule)
        settings = record_settings(rule, codec or ResponseCodec())
        self.dedup = dedup.scoped(SCOPE, **settings)
        self.forms = dedup.scoped(**settings)  # the namespace in which the application issues its tokens

    async def claim(self, name: str, mark: Fingerprint, *, owns_renewal: bool = False) -> Claim:
        """Claim a record of `Rule.identify`. Raises what `Dedup.claim` raises.

        `owns_renewal`: see `ClaimCall.owns_renewal`.
        """
        at_once, waiting = self._options
        # Not by `patiently`, which takes a coroutine more.
        call = claim_call(self.dedup.gate, at_once, name, mark)
        call.owns_renewal = owns_renewal
        call.will_wait = waiting is not None
        found = await call
        if waiting is not None and found.outcome is Outcome.IN_PROGRESS:
            return await claim_call(self.dedup.gate, waiting, name, mark)
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


async def patiently(claim: Callable[[ClaimOptions], ClaimCall], options: PatientOptions) -> Claim:
    """Claim, and wait for an owner at work only: while the store is unavailable a request is refused at once."""
    at_once, waiting = options
    first = claim(at_once)
    first.will_wait = waiting is not None
    found = await first
    if waiting is None or found.outcome is not Outcome.IN_PROGRESS:
        return found
    return await claim(waiting)
