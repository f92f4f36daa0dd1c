"""The answer to a claim: what `Claim` knows. Apart from what it does, as each claim makes one and few do more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import codec
from .compiled import mypyc_attr
from .model import Outcome
from .protocol.operations import Verdict
from .protocol.owners import owner_text

if TYPE_CHECKING:
    from .claims.call import ClaimCall
    from .gate.namespace import Scope
    from .gate.renewal import Renewal

_ACQUIRED = Outcome.ACQUIRED  # naming an enum's member through its class costs 50 ns on Python 3.11
_SUCCEEDED = Outcome.SUCCEEDED
_SHAREABLE = (str, int, float, bool)
"""Decoded once for all who ask; what could be changed by one caller is decoded for each."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Answer:
    """What a claimant was told, and how far it has come since."""

    __slots__ = ("_call", "_lost", "_renewal", "_scope", "_settled", "_unsure", "_verdict", "settling")

    def __init__(self, scope: Scope, call: ClaimCall, verdict: Verdict) -> None:
        self._scope = scope
        self._call = call
        self._verdict = verdict
        # Mutable: how it was settled; whether the lease is known to be lost; who renews.
        self._settled: str | None = None
        self._lost = False
        self.settling = False
        """Completing or failing was tried: the effect has happened, so leaving never frees the key."""
        self._renewal: Renewal | None = None
        self._unsure = False
        """A release got no reply: it may have taken effect."""

    def __repr__(self) -> str:
        return f"<Claim {self.key!r} {self.outcome} fence={self.fence} attempt={self.attempt}>"

    @property
    def outcome(self) -> Outcome:
        """What the claimant found."""
        return self._verdict.outcome

    @property
    def acquired(self) -> bool:
        """True for the one who shall do the work."""
        return self._verdict.outcome is _ACQUIRED

    @property
    def key(self) -> str:
        """The idempotency key; for a token a digest of it."""
        return self._call.key

    @property
    def owner(self) -> str:
        """This claimant's own name, never another's. Whoever knows it can settle the claim."""
        return owner_text(self._call.owner)

    @property
    def fence(self) -> int:
        """The present owner's fence, rising from owner to owner: hand it to what you write to (0: unknown)."""
        return self._verdict.fence

    @property
    def attempt(self) -> int:
        """How often the key was acquired: 1 for the first, more after takeovers and releases."""
        return self._verdict.attempt

    @property
    def result(self) -> Any:
        """The first result where the outcome is SUCCEEDED; a fresh copy each time."""
        verdict = self._verdict
        if verdict.outcome is not _SUCCEEDED or not verdict.payload:
            return None
        if verdict.value is not None:
            return verdict.value
        value = self._scope.settings.codec.loads(verdict.payload)
        if type(value) in _SHAREABLE:
            verdict.value = value
        return value

    @property
    def error(self) -> Any:
        """The recorded error where the outcome is FAILED; a fresh copy each time."""
        if self.outcome is not Outcome.FAILED:
            return None
        return codec.decode(self._scope.settings.codec, self._verdict.payload)

    @property
    def lease(self) -> float | None:
        """Seconds that this claim's lease had left when it was answered; None unless acquired."""
        return self._verdict.left_ms / 1000 if self.acquired else None

    @property
    def retry_after(self) -> float | None:
        """Seconds until the present owner's lease ends at the latest; None unless IN_PROGRESS."""
        return self._verdict.left_ms / 1000 if self.outcome is Outcome.IN_PROGRESS else None

    @property
    def degraded(self) -> bool:
        """True where the fallback policy answered instead of the store."""
        return self._verdict.degraded

    @property
    def confirmed(self) -> bool:
        """False where it was acquired and too few replicas had that in time (`replicas=`)."""
        return not self._verdict.short

    @property
    def verdict(self) -> Verdict:
        """The store's own answer."""
        return self._verdict

    @property
    def hold(self) -> tuple[bytes, bytes]:
        """The store key and the owner field: what settling takes, for who keeps no claim object."""
        return self._call.wire, self._call.owner

    @property
    def first_hand(self) -> bool:
        """True where this call acquired the key, False where its owner held it before."""
        return self._verdict.fresh
