"""Cancellations that a broker's client loses.

On Python 3.11 `asyncio.wait_for` drops a cancellation that comes right after its awaitable has ended. redis-py sends
each command with it, and nats-py waits for each reply with it. A task that goes on in spite of its cancellation may
never end.
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
        any error of the call.
    """
    task = asyncio.current_task()
    assert task is not None
    cancelled = task.cancelling()
    found = await call
    if task.cancelling() > cancelled:
        await (
            checkpoint_if_cancelled()
        )  # raises if a scope of anyio was cancelled; the scope knows its own error
        raise asyncio.CancelledError
    return found
