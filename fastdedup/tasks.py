"""Ending tasks."""

from __future__ import annotations

import asyncio
from typing import Any


async def stop(task: asyncio.Task[Any]) -> None:
    """Cancel a task until it ends: redis-py's connecting may take a cancellation for its own timeout."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.05)
