"""Renews one claim until it is settled, lost or forgotten.

Not compiled: `async with` awaits while an error is handled, and what mypyc makes of that crashes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ..errors import DedupError, UnavailableError


class Renewable(Protocol):
    """The life of a claim, as far as its renewal concerns it."""

    @property
    def is_over(self) -> bool:
        """True if it is settled, or about to be."""

    async def renew(self) -> None:
        """Start the lease anew."""

    def lose(self, *, outage: bool) -> None:
        """Take note that the lease could not be renewed; `outage`: the store did not answer until it ended."""


class Waiting(Protocol):
    """A renewal that waits for the first third of its lease to be over."""

    began: float

    def start(self) -> None:
        """The first third is over."""


async def keep_renewed(
    held: Callable[[], Renewable | None], loop: asyncio.AbstractEventLoop, began: float, lease: float
) -> None:
    """Renew at each third of the lease. The claim is lost when the store says so, or when the lease passed.

    An error that is not fastdedup's comes from the user's policy in an outage: it is no answer either.
    If nothing was asked before the lease passed, this process stood still, and that is no outage: another owner
    may have the key.
    """
    pause, unanswered = 0.0, False
    ends = began + lease
    while True:
        await asyncio.sleep(min(pause, max(ends - loop.time(), 0.0)))
        started = loop.time()
        life = held()
        if life is None:
            return None
        if started >= ends:  # a renewal that is sent now would hold the key, and no caller would use it
            return None if life.is_over else life.lose(outage=unanswered)
        try:
            async with asyncio.timeout_at(ends):
                await life.renew()
            pause, unanswered, ends = lease / 3, False, started + lease
        except Exception as error:  # noqa: BLE001 -- a policy of the user's may raise any
            if isinstance(error, DedupError) and not isinstance(error, UnavailableError):
                # Lost, or the store holds something else by now.
                return None if life.is_over else life.lose(outage=False)
            unanswered = True
            if loop.time() >= ends:
                return None if life.is_over else life.lose(outage=True)
            pause = lease / 10
        del life  # only weakly held while asleep
