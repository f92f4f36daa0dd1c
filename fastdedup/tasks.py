"""Functions that end asyncio tasks."""

from __future__ import annotations

import asyncio
from typing import Any


async def stop(task: asyncio.Task[Any]) -> None:
    """Cancel a task again and again until it ends: redis-py may mistake a cancellation for its own timeout."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.05)
