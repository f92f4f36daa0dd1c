"""What of a partition is in hand, and up to where it is done. No I/O."""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, TypeVar

import anyio

from .consumer import MessageJob

Record = TypeVar("Record")


class PartitionJob(MessageJob[Record]):
    """A message of a partition.

    Attributes:
        offset: its place in the partition.
        partition: the partition that it was taken from.
        ended: set once it is done, or given up.
        before: the message before it with the same key; None where that is not in hand.
        is_done: its work is done: it need not be delivered again.
    """

    __slots__ = ("before", "ended", "is_done", "offset", "partition")

    def __init__(self, message: Record, offset: int, partition: Partition[Record]) -> None:
        super().__init__(message)
        self.offset = offset
        self.partition = partition
        self.ended = anyio.Event()
        self.before: PartitionJob[Record] | None = None
        self.is_done = False


class Partition(Generic[Record]):
    """The messages of a partition from the first that is not done on, those behind it that are done included.

    Messages with one key are worked on one after the other, in their order; others side by side.

    Args:
        limit: how many messages it holds.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Mutable: its messages by offset, the last one with each key, up to where all is done, and is committed.
        self._held: deque[PartitionJob[Record]] = deque()
        self._last_of: dict[Any, PartitionJob[Record]] = {}
        self._done_to: int | None = None
        self._told: int | None = None

    @property
    def room(self) -> int:
        """For how many more messages there is room."""
        return self._limit - len(self._held)

    @property
    def jobs(self) -> set[PartitionJob[Record]]:
        """The messages that are not done."""
        return {job for job in self._held if not job.is_done}

    def take(self, record: Record, offset: int, key: Any) -> PartitionJob[Record]:
        """Hold a message; one whose key is not None follows the one before it with that key."""
        job = PartitionJob(record, offset, self)
        self._held.append(job)
        if key is not None:
            job.before = self._last_of.get(key)
            self._last_of[key] = job
        return job

    def end(self, job: PartitionJob[Record], key: Any, *, done: bool) -> None:
        """Let the next message with its key go on; count it as done, or as given up."""
        if key is not None and self._last_of.get(key) is job:
            del self._last_of[key]
        job.before = None
        job.is_done = done
        job.ended.set()
        while self._held and self._held[0].is_done:
            self._done_to = self._held.popleft().offset + 1

    def untold(self) -> int | None:
        """Return the offset behind the last message up to which all is done; None where it was told before."""
        return None if self._done_to == self._told else self._done_to

    def tell(self, offset: int) -> None:
        """The broker knows that all before this offset is done."""
        self._told = offset
