"""Handing messages from a broker's client to the tasks that handle them, in bursts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")
BURST: Final = 64
"""The most messages that are handed out together."""
_QUIET: Final = 3
"""Turns of the event loop without a message, after which those that came are handed out."""


class Handout(Generic[T]):
    """Messages for the next free task, in order. Not bounded itself: the broker sends no more than its prefetch
    on a connection, and `drop` forgets those of a lost one.

    A client reads a few messages in each turn of the event loop. If they were handed out in each turn, their claims
    would go to the store in twos and threes. Messages in quick succession are handed out together, and share a batch.
    A single message waits for three turns, some microseconds.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # Mutable: messages that came, and the turns since the last one; those that were handed out.
        self._came: list[T] = []
        self._quiet = 0
        self._messages = asyncio.Queue[T]()
        self.take = self._messages.get
        """Awaited for the next message. It goes to the task that has waited for the longest time."""

    def give(self, message: T) -> None:
        """Give a message to the task that has been free for the longest time, soon."""
        self._quiet = 0
        self._came.append(message)
        if len(self._came) == 1:
            self._loop.call_soon(self._turn)

    def drop(self, is_lost: Callable[[T], bool]) -> list[T]:
        """Forget the messages that wait for a task and that are lost; return them."""
        waiting = [self._messages.get_nowait() for _ in range(self._messages.qsize())]
        lost = []
        for message in waiting:
            lost.append(message) if is_lost(message) else self._messages.put_nowait(message)
        return lost

    def _turn(self) -> None:
        """Wait for another turn while messages come; else hand them out."""
        self._quiet += 1
        if self._quiet <= _QUIET and len(self._came) < BURST:
            self._loop.call_soon(self._turn)
            return
        came, self._came = self._came, []
        for message in came:
            self._messages.put_nowait(message)
