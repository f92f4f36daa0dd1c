"""Cancellations that a broker's client loses.

On Python 3.11 `asyncio.wait_for` drops a cancellation that comes as its awaitable has just ended. redis-py sends each
command by it, nats-py waits for each reply by it. A task that goes on in spite of its cancellation may never end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from anyio.lowlevel import checkpoint_if_cancelled

T = TypeVar("T")


async def heeding_cancel(call: Awaitable[T]) -> T:
    """Return what a call of a broker's client returns, unless the task was cancelled meanwhile.

    Raises:
        CancelledError: the client has lost a cancellation.
        whatever the call raises.
    """
    task = asyncio.current_task()
    assert task is not None
    cancelled = task.cancelling()
    found = await call
    if task.cancelling() > cancelled:
        await (
            checkpoint_if_cancelled()
        )  # raises where one of anyio's scopes was cancelled, which knows its own error
        raise asyncio.CancelledError
    return found
