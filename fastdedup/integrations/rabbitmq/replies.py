"""Waiting for the broker's replies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

from aiormq.exceptions import AMQPError, ChannelInvalidStateError

T = TypeVar("T")
LOST: Final = (ChannelInvalidStateError, AMQPError, ConnectionError)
"""The channel that a message came by is gone: the broker delivers it again."""


async def reply(call: Awaitable[T]) -> T:
    """Return the broker's reply.

    When the channel closes, aiormq raises CancelledError in each task that waits for a reply, although the task
    itself was not cancelled.

    Raises:
        ConnectionError: the channel was closed.
    """
    try:
        return await call
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
    except Exception as error:
        # A call that is cancelled, or rejected, before the channel knows why it closes ends in a bare Exception.
        if type(error) is not Exception or error.args:
            raise
    raise ConnectionError("the channel was closed before the broker has replied")
