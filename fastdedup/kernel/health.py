"""Runs one store's breaker: counts the batches that fail, and probes the store while the breaker is open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..errors import UnavailableError
from ..model import BreakerState
from ..tasks import patience, stop
from .breaker import Breaker
from .operations import ReadOp
from .store import BatchStore, ProbedStore
from .verbs import Verb

OnChange = Callable[[str, float], None]
"""Called with a reason and 0.0 when the breaker opens; with "" and the seconds that it was open when it closes."""


class StoreHealth:
    """Knows whether a store answers; belongs to one event loop.

    Args:
        timeout: seconds that a probe may take.
        wire: a store key without a record, for the probes.
        on_change: see `OnChange`; called in the loop, must not raise.
    """

    def __init__(self, store: BatchStore, *, timeout: float, wire: bytes, on_change: OnChange) -> None:
        self._store = store
        self._timeout = timeout
        self._wire = wire
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        # Mutable: the breaker; since when it is open, in the loop's time; the task that probes, its timer.
        self._breaker = Breaker()
        self._opened_at = 0.0
        self._prober: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._ended = False

    @property
    def state(self) -> BreakerState:
        """The breaker's state: CLOSED or OPEN."""
        return self._breaker.state

    def answered(self) -> None:
        """Record a batch that was answered."""
        self._breaker.succeeded()

    def failed(self, error: UnavailableError) -> None:
        """Record a batch that was not answered."""
        if self._breaker.failed(str(error)):
            self._opened_at = self._loop.time()
            self._probe_later()
            self._on_change(self._breaker.reason, 0.0)

    def error(self) -> UnavailableError:
        """Return the error for an operation that is refused because the breaker is open."""
        lasted = self._loop.time() - self._opened_at
        return UnavailableError(f"{self._breaker.reason} (breaker open for {lasted:.1f} s)")

    async def aclose(self) -> None:
        """Stop probing."""
        self._ended = True
        if self._alarm is not None:
            self._alarm.cancel()
        if self._prober is not None:
            await stop(self._prober)

    def store_is_back(self) -> None:
        """Close an open breaker without a probe: the store answers again, or no longer exists."""
        if self._alarm is not None:
            self._alarm.cancel()
        if self._prober is not None:
            self._prober.cancel()
        if self._breaker.state is BreakerState.OPEN and self._breaker.probed(None):
            self._on_change("", self._loop.time() - self._opened_at)

    def _probe_later(self) -> None:
        if self._ended:
            return
        # A timer, not a task that sleeps: a program that ends without closing leaves no task behind.
        self._alarm = self._loop.call_later(self._breaker.pause(), self._probe_now)

    def _probe_now(self) -> None:
        self._prober = self._loop.create_task(self._look(), name="fastdedup-probe")

    async def _look(self) -> None:
        if self._breaker.probed(await self._probe()):
            self._on_change("", self._loop.time() - self._opened_at)
        else:
            self._probe_later()

    async def _probe(self) -> str | None:
        """Probe once; return None if the store would take a write, otherwise the reason why it would not."""
        try:
            async with asyncio.timeout(await patience(self._timeout)):
                if isinstance(self._store, ProbedStore):
                    await self._store.probe(self._wire)
                else:
                    (reply,) = await self._store.execute(Verb.READ, [ReadOp(self._wire)])
                    return str(reply) if isinstance(reply, UnavailableError) else None
        except TimeoutError:
            return f"the store gave no answer within {self._timeout:g} s"
        except UnavailableError as error:
            return str(error)
        except Exception:  # noqa: BLE001 -- the store answers, so it is not an outage: the next caller gets the error
            return None
        return None
