"""What a client has sent at once and what runs in later turns of the loop, others' between: commands, then data."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ..request_memory import PLACE

PIECE: Final = 4 * 1024
"""The bytes that are cut into commands at once: 256 KiB of short commands take 10 ms."""


class Backlog(deque["list[bytes] | memoryview"]):
    """Commands, and data that is cut into commands when those before it have run.

    300 clients with 5,000 commands each took 1.6 s in one turn of the loop, and 300 MB.

    Args:
        cut: returns the whole commands that end in this piece of data.
    """

    def __init__(self, cut: Callable[[bytes], list[list[bytes]]]) -> None:
        super().__init__()
        self._cut = cut

    def take(self, most: int) -> list[list[bytes]]:
        """Remove and return the next commands."""
        commands: list[list[bytes]] = []
        while self and len(commands) < most:
            first = self.popleft()
            if isinstance(first, memoryview):
                if len(first) > PIECE:
                    self.appendleft(first[PIECE:])
                self.extendleft(reversed(self._cut(bytes(first[:PIECE]))))
            else:
                commands.append(first)
        return commands

    @property
    def size(self) -> int:
        """The bytes, about, that it takes."""
        data: list[Any] = [each.obj for each in self if isinstance(each, memoryview)]
        return len(self) * PLACE + sum(map(len, data))
