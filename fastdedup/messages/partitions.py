"""The messages of a partition that are in hand, and the offset up to which all are done. No I/O."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from .consumer import MessageJob
from .key_turns import KeyTurns

Record = TypeVar("Record")


class PartitionJob(MessageJob[Record]):
    """A message of a partition.

    Attributes:
        offset: its place in the partition.
        partition: the partition that it was taken from.
        is_done: its work is done, so the broker need not deliver it again.
    """

    __slots__ = ("is_done", "offset", "partition")

    def __init__(self, message: Record, offset: int, partition: Partition[Record]) -> None:
        super().__init__(message)
        self.offset = offset
        self.partition = partition
        self.is_done = False


class Partition(Generic[Record]):
    """The messages of a partition, from the first that is not done. Later ones that are done are included.

    Args:
        limit: the most messages that it holds.

    Attributes:
        turns: messages with one key run one after the other, in their order; other messages run side by side.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.turns = KeyTurns()
        # Mutable: its messages by offset; the offsets up to which all is done, and committed.
        self._held: deque[PartitionJob[Record]] = deque()
        self._done_to: int | None = None
        self._told: int | None = None

    @property
    def room(self) -> int:
        """How many more messages fit."""
        return self._limit - len(self._held)

    @property
    def jobs(self) -> set[PartitionJob[Record]]:
        """The messages that are not done."""
        return {job for job in self._held if not job.is_done}

    def take(self, record: Record, offset: int) -> PartitionJob[Record]:
        """Hold a message."""
        job = PartitionJob(record, offset, self)
        self._held.append(job)
        return job

    def end(self, job: PartitionJob[Record]) -> None:
        """Count a message as done."""
        job.is_done = True
        while self._held and self._held[0].is_done:
            self._done_to = self._held.popleft().offset + 1

    def untold(self) -> int | None:
        """Return the offset behind the last message up to which all is done; None if the broker knows it already."""
        return None if self._done_to == self._told else self._done_to

    def tell(self, offset: int) -> None:
        """Record that the broker knows: all messages before this offset are done."""
        self._told = offset
