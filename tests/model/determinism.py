"""What makes a run the same each time: one source of time, one source of randomness, and steps that are counted.

Each source of either that the package has is replaced here, and nowhere else:

- `time.time`, `time.monotonic` and `time.monotonic_ns`, also where a module has imported the function by its name
  (`from time import monotonic`: claim, gateway, ledger/client, admin/inspection, core/{recent,incidents},
  kernel/clock, stores/redis/scripts, stores/sidecar/store); `time.perf_counter` likewise (kernel/engine,
  core/{gate,counters,calls});
- the loop's own clock (`VirtualLoop.time`), by which all timers, deadlines and leases of the package end;
- Python's generator behind `random.random` and its brothers: the pauses of orphans, the breaker, settling,
  waiting and reconciliation, and the offset of a memory store's fences;
- `os.urandom` and its copy in `random`, behind `secrets`: owners, nonces, tokens, a ledger's secret;
- the owners that were drawn in advance (`kernel/owners.py`), and what the process was told is its own
  (`kernel/granted.py`).
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop
from math import inf
from typing import Any
from unittest.mock import patch

from fastdedup.kernel import owners
from fastdedup.kernel.granted import GRANTED

from ..virtual import EPOCH, VirtualLoop

_CLOCKS = ("monotonic", "monotonic_ns", "perf_counter", "time")
_TINY = 1e-12


class SteppingLoop(VirtualLoop):
    """A virtual loop whose steps are counted; a step is one turn of its ready queue. Nothing here does I/O.

    Another loop of the same process may run beside it, see `beside`; it takes a turn after each turn of this one.

    Args:
        order: 0 runs tasks in asyncio's order; any other number shuffles the tasks of each turn, by that seed.
        most: steps after which the run counts as endless.
    """

    def __init__(self, order: int = 0, most: int = 20_000) -> None:
        super().__init__()
        self._shuffle = random.Random(order).shuffle if order else None
        self._most = most
        self._timers = 0
        self._others: list[SteppingLoop] = []
        self.steps = 0
        self.on_step: Callable[[int], object] | None = None
        """Called with the number of each step before it is taken."""

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        self._timers += 1  # timers of one time ring in the order in which they were set
        return super().call_at(when + self._timers * _TINY, callback, *args, context=context)

    def beside(self) -> SteppingLoop:
        """Return another event loop of this process, at the same time."""
        other = SteppingLoop()
        other._virtual, other._shuffle = self._virtual, self._shuffle
        self._others.append(other)
        return other

    def close(self) -> None:
        for other in self._others:
            other.close()
        super().close()

    def _next_at(self) -> float:
        """Return when something is to do that is not to do now: inf for never."""
        scheduled = self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            heappop(scheduled)._scheduled = False
        return scheduled[0]._when if scheduled else inf

    def _run_once(self) -> None:
        if not (self._ready or any(other._ready for other in self._others)):  # type: ignore[attr-defined]
            next_at = min(loop._next_at() for loop in (self, *self._others))
            if next_at == inf:
                raise RuntimeError("the loop would wait for ever: nothing is scheduled")
            self._virtual.now = max(self._virtual.now, next_at)
        self._take_turn()
        for other in self._others:
            asyncio._set_running_loop(other)
            try:
                other._take_turn()
            finally:
                asyncio._set_running_loop(self)

    def _take_turn(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._when <= self._virtual.now:
            timer = heappop(scheduled)
            timer._scheduled = False
            ready.append(timer)
        self.steps += 1
        if self.steps > self._most:
            raise RuntimeError(f"still busy after {self.steps} steps")
        if self.on_step is not None:
            self.on_step(self.steps)
        if self._shuffle is not None and len(ready) > 1:
            self._reorder(ready)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _reorder(self, ready: Any) -> None:
        """Shuffle the steps of tasks among their places; other callbacks keep theirs, as asyncio promises."""
        places = [at for at, handle in enumerate(ready) if _is_step(handle)]
        steps = [ready[at] for at in places]
        self._shuffle(steps)  # type: ignore[misc]
        for at, step in zip(places, steps, strict=True):
            ready[at] = step


def _is_step(handle: Any) -> bool:
    return isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)


class _Pinned:
    """The clock and the bytes of the run under way."""

    loop: SteppingLoop | None = None
    bytes_of: Callable[[int], bytes] = random.Random(0).randbytes

    @classmethod
    def now(cls) -> float:
        return 0.0 if cls.loop is None else cls.loop.time()


@contextmanager
def pinned() -> Iterator[None]:
    """Replace every source of time and randomness; see the module's docstring."""
    clocks: dict[str, Callable[[], Any]] = {
        "monotonic": lambda: 1000.0 + _Pinned.now(),
        "monotonic_ns": lambda: round((1000.0 + _Pinned.now()) * 1e9),
        "perf_counter": lambda: 1000.0 + _Pinned.now(),
        "time": lambda: EPOCH + _Pinned.now(),
    }
    real = {name: getattr(time, name) for name in _CLOCKS}
    patches = [patch.object(time, name, clocks[name]) for name in _CLOCKS if name != "perf_counter"]
    for module in [each for name, each in sys.modules.items() if name.startswith("fastdedup")]:
        copied = [name for name in _CLOCKS if getattr(module, name, None) is real[name]]
        patches += [patch.object(module, name, clocks[name]) for name in copied]
    patches.append(patch.object(os, "urandom", lambda size: _Pinned.bytes_of(size)))
    patches.append(patch.object(random, "_urandom", lambda size: _Pinned.bytes_of(size)))
    state, drawn = random.getstate(), list(owners.drawn_ahead)
    try:
        for each in patches:
            each.start()
        yield
    finally:
        for each in reversed(patches):
            each.stop()
        random.setstate(state)
        owners.drawn_ahead.clear()
        owners.drawn_ahead.extend(drawn)
        _Pinned.loop = None


def begin(loop: SteppingLoop) -> None:
    """Let a run begin: its clock is this loop's, and its randomness is the same each time."""
    _Pinned.loop = loop
    _Pinned.bytes_of = random.Random(1).randbytes
    random.seed(2)
    owners.drawn_ahead.clear()
    GRANTED.clear()
