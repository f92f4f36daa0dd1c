"""A claim that asks what became of abandoned work: what `dedup.claim(key, resolve=check)` returns."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ..claim import Claim
from ..core.calls import ClaimCall
from .resolving import Check, resolve


class ResolvedCall(ClaimCall):
    """A claim not yet made, as `ClaimCall`. Where the key was held before, the user's check is asked first.

    Args:
        call: makes the claim; its lease is renewed while the check runs.
        check: see `resolving.py`.
        renews: whether the lease is renewed afterwards, too.
    """

    __slots__ = ("_call", "_check", "_renews_after")

    def __init__(self, call: ClaimCall, check: Check, *, renews: bool) -> None:
        self._used = False
        self._gate = call._gate
        self.key = call.key
        self.patient = call.patient
        if call.patient:
            self.wait, self.renew = call.wait, renews
        call._used = True  # of two that nobody awaits, one warns
        self._call = call
        self._check = check
        self._renews_after = renews

    def __await__(self) -> Generator[Any, Any, Claim]:
        """Claim, then resolve. A coroutine of its own, as the check is awaited."""
        self._call._used = self._used
        self._used = True
        return (yield from self._resolved().__await__())

    async def _resolved(self) -> Claim:
        claim = await self._call
        return await resolve(claim, self._check, renews=self._renews_after)

    def close(self) -> None:
        """Give up."""
        self._call.close()
        super().close()
