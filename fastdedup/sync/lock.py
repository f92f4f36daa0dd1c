"""Locks for synchronous code: asyncio's locks, driven from the caller's thread."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from ..checks import Seconds
from ..errors import InProgressError, UsageError
from ..lock import not_entered
from .claim import Claim


class Lock:
    """A lock that is held. Send `fence` with your writes, so that their receiver can refuse an earlier holder."""

    __slots__ = ("_claim",)

    def __init__(self, claim: Claim) -> None:
        self._claim = claim

    def __repr__(self) -> str:
        return f"<Lock {self.key!r} fence={self.fence}>"

    @property
    def lost(self) -> bool:
        """True once the lease is known to be lost."""
        return self._claim.lost

    # The rest of the class is written by scripts/write_sync.py, which `make format` runs.

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

    def renew(self, lease: Seconds | None = None) -> None:
        """Start the lease anew from now. Raises ClaimLostError if another owner holds the lock."""
        self._claim.renew(lease)


class LockCall:
    """The result of `dedup.lock()`: enter it once, with `with`."""

    __slots__ = ("_ask", "_held")

    def __init__(self, ask: Callable[[], Claim]) -> None:
        self._ask: Callable[[], Claim] | None = ask
        self._held: Claim | None = None

    if not TYPE_CHECKING:  # a checker must report the attribute too

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError: only the lock that `with` gives has attributes."""
            raise not_entered(name, "with")

    def __enter__(self) -> Lock:
        ask, self._ask = self._ask, None
        if ask is None:
            raise UsageError("this lock was entered before; call lock() for another one")
        try:
            claim = self._held = ask()
            if not claim.acquired:
                self._held = None  # nothing to leave
                raise InProgressError(
                    f"the lock {claim.key!r} is held by another owner", retry_after=claim.retry_after or 0.0
                )
            return Lock(claim)
        except BaseException as error:  # such as a signal's: a block that was not entered is never left
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        claim, self._held = self._held, None
        if claim is not None:
            claim.leave(error, release=True)
