"""A claim whose lease is kept alive. Not compiled: mypyc's classes cannot be referred to weakly."""

from __future__ import annotations

from ..claim import Claim, Stoppable


class RenewedClaim(Claim):
    """A claim that can be referred to weakly: those that nobody renews are spared what that takes."""

    __slots__ = ("__weakref__",)

    def _renewed_by(self, renewal: Stoppable) -> None:
        """Remember what to stop when the claim is settled."""
        self._renewal = renewal
