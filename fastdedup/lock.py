"""Mutual exclusion by claims: a lock is a claim that is released and never completed."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from .checks import Seconds
from .claim import Claim
from .core.calls import ClaimCall, claim_op
from .core.gate import Gate
from .core.options import ClaimOptions
from .errors import InProgressError


class Lock:
    """A lock that is held. Send `fence` with your writes, so that their receiver can refuse an earlier holder."""

    __slots__ = ("_claim",)

    def __init__(self, claim: Claim) -> None:
        self._claim = claim

    def __repr__(self) -> str:
        return f"<Lock {self.key!r} fence={self.fence}>"

    @property
    def key(self) -> str:
        """The key of the lock."""
        return self._claim.key

    @property
    def owner(self) -> str:
        """The owner's name: the present holder."""
        return self._claim.owner

    @property
    def fence(self) -> int:
        """A number that rises from holder to holder."""
        return self._claim.fence

    @property
    def degraded(self) -> bool:
        """True if the fallback policy gave the lock: then it excludes only callers in this process."""
        return self._claim.degraded

    async def renew(self, lease: Seconds | None = None) -> None:
        """Start the lease anew from now. Raises ClaimLostError if another owner holds the lock."""
        await self._claim.renew(lease)


def not_entered(name: str, statement: str) -> AttributeError:
    """Return the error for an attribute of a lock that was not entered. `statement`: the one that enters it."""
    return AttributeError(
        f"this lock is not held yet, so it has no {name!r}: write `{statement} dedup.lock(key) as lock:`; "
        "the lock is held in that block"
    )


class LockCall:
    """The return value of `dedup.lock()`: enter it with `async with`."""

    __slots__ = ("_call", "_held")

    def __init__(self, call: ClaimCall) -> None:
        self._call = call
        self._held: Claim | None = None

    @property
    def call(self) -> ClaimCall:
        """The call that claims the lock's key."""
        return self._call

    if not TYPE_CHECKING:  # a checker must report the attribute too

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError: only the lock that `async with` gives has attributes."""
            raise not_entered(name, "async with")

    async def __aenter__(self) -> Lock:
        claim = await self._call
        if not claim.acquired:
            raise InProgressError(
                f"the lock {claim.key!r} is held by another owner", retry_after=claim.retry_after or 0.0
            )
        claim.settlement.guard(asyncio.current_task())
        self._held = claim
        return Lock(claim)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        claim, self._held = self._held, None
        assert claim is not None
        await claim.settlement.leave(error, release=True)


def lock_call(gate: Gate, options: ClaimOptions, key: str) -> LockCall:
    """Return a lock to enter. Arguments and errors: see `Dedup.lock`."""
    renew = options.lease is None if options.renews is None else options.renews
    lease = gate.settings.lease if options.lease is None else options.lease
    options = options.but(lease=lease, ttl=lease)  # nothing is remembered for longer than the lock is held
    op = claim_op(gate, options, key, gate.locks.wire(key), None)
    return LockCall(ClaimCall(gate, op, options.seconds_to_wait, renew, verb="lock"))
