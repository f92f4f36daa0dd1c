"""Keeps a claim's lease alive while its owner works, and notices when that fails."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING

from .errors import DedupError, UnavailableError

if TYPE_CHECKING:
    from .claim import Claim


class Renewal:
    """Renews at a third of the lease; lost when told so, or when the lease passed unrenewed.

    Holds the claim weakly: a claim that the program forgot about is not renewed for ever.
    """

    __slots__ = ("_claim", "_ends", "_lease", "_loop", "_task", "_timer")

    def __init__(self, claim: Claim, lease: float) -> None:
        self._claim = weakref.ref(claim)
        self._lease = lease
        self._loop = asyncio.get_running_loop()
        self._ends = self._loop.time() + lease
        # Mutable: most claims are settled before the first third is over, and never need a task.
        self._timer = self._loop.call_later(lease / 3, self._start)
        self._task: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Renew no more."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _start(self) -> None:
        self._task = self._loop.create_task(self._run(), name="fastdedup-renewal")

    async def _run(self) -> None:
        pause = 0.0
        ends = self._ends
        while True:
            await asyncio.sleep(min(pause, max(ends - self._loop.time(), 0.0)))
            started = self._loop.time()
            claim = self._claim()
            if claim is None:
                return None
            try:
                async with asyncio.timeout_at(ends):
                    await claim.renew()
            except (UnavailableError, TimeoutError):
                if self._loop.time() >= ends:
                    return claim.lose()
                pause = self._lease / 10
            except DedupError:
                # Lost, or the store holds something else by now. Settled or being settled: no concern of ours.
                return None if claim.settling else claim.lose()
            else:
                pause = self._lease / 3
                ends = started + self._lease
            del claim  # only weakly held while asleep
