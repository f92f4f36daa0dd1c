"""Turns: the messages of one key in hand run one after the other, in the order in which they were taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakValueDictionary

from anyio.lowlevel import checkpoint_if_cancelled


class KeyTurns:
    """Lets the messages of one key run one after the other, and those of other keys beside them.

    The tasks of messages begin in the order in which they were started, so they ask for their turns in that order.
    """

    def __init__(self) -> None:
        # Mutable: the lock of each key that a message in hand has. Locks of asyncio are fair.
        self._locks: WeakValueDictionary[Any, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, key: Any) -> AsyncIterator[None]:
        """Wait until the messages with this key that asked before have ended; a message without a key does not wait.

        If the message before was given up because its consumer ends, this one is not begun.
        """
        if key is None:
            yield
            return
        async with self._locks.setdefault(key, asyncio.Lock()):
            await checkpoint_if_cancelled()
            yield
