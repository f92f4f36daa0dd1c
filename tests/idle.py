"""How long a thread had nothing to do: tests of waiting count that alone, as a busy machine slows all else."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Self

# Nanoseconds that this thread has worked, and those in which it could have worked and had to wait for a core.
_SCHEDULED = Path("/proc/thread-self/schedstat")


class IdleTime:
    """Counts the seconds in which this thread, with its event loop, waits for sockets and timers. A context manager.

    Attributes:
        seconds: in the block, once it has ended.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self._began = _idle()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = _idle() - self._began


def _idle() -> float:
    """Return the time at which this thread would be now, had it never worked and never waited for a core."""
    if not _SCHEDULED.exists():
        return time.monotonic() - time.thread_time()
    worked, waited, _ = _SCHEDULED.read_text().split()
    return time.monotonic() - (int(worked) + int(waited)) / 1e9
