"""How long a loop had nothing to do: a test of waiting counts that alone, as a busy machine makes all else slower."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Self


class IdleTime:
    """Counts the seconds in which the running loop of asyncio waits for sockets and timers. A context manager.

    Attributes:
        seconds: so far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._selector: Any = None

    def __enter__(self) -> Self:
        selector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
        select = selector.select

        def timed(timeout: float | None = None) -> Any:
            began = time.monotonic()
            try:
                return select(timeout)
            finally:
                self.seconds += time.monotonic() - began

        selector.select = timed
        self._selector = selector
        return self

    def __exit__(self, *_: object) -> None:
        del self._selector.select
