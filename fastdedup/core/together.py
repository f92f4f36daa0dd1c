"""Operations of one call that are answered together: all share one future."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar

from ..errors import UnavailableError

AT_ONCE: Final = 2000
"""Operations of a list that are sent together: with more, some would wait beyond the deadline, and block the loop."""
T = TypeVar("T")


def count_parts(operations: int) -> int:
    """Return the number of parts in which a list of so many operations is sent."""
    return -(-operations // AT_ONCE)


def parts_of(operations: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the parts of a list that are sent together."""
    for start in range(0, len(operations), AT_ONCE):
        yield operations[start : start + AT_ONCE]


class Listed(Protocol):
    """An operation of a list."""

    def fail(self, error: BaseException) -> None:
        """Take an error in the reply's place."""
        ...


class Together:
    """Waits for the answers to the operations of one call. Each operation calls `answered` when it has its answer."""

    def __init__(self) -> None:
        # Mutable: how many answers are missing, and the future of all, done when the last one has come.
        self._left = 0
        self._done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answered(self) -> None:
        """Count one more operation that has its answer."""
        self._left -= 1
        if not self._left and not self._done.done():
            self._done.set_result(None)

    async def send(self, ops: Sequence[Listed], begin: Callable[[Any, Any], Any]) -> None:
        """Send the operations with `begin`, and wait until each has an answer or an error in its place."""
        if self._done.done():  # of the operations that were sent before
            self._done = asyncio.get_running_loop().create_future()
        self._left = len(ops)
        for op in ops:
            try:
                begin(op, self._done)
            except UnavailableError as fault:
                op.fail(fault)
        if self._left:
            await self._done
        else:
            # The policy answered at once. Yield, because a caller that claims in a loop must let others run.
            await asyncio.sleep(0)
