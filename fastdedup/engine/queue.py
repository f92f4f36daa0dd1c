"""The operations that wait to be sent, in a lane for each verb: decides what the next batch holds, sends nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import cast

from ..protocol.operations import ClaimOp, Op, Verb

_MIN_BATCH = 16
"""Smaller batches cost more than their overlapping saves."""

# Always first: whoever settles gives work back. Claims cannot be starved by it, as every settling
# needs a claim before it; and a release must overtake the claims that wait for it.
_URGENT = (Verb.ADOPT, Verb.SETTLE, Verb.RELEASE, Verb.RENEW)
# In turn: whichever was served goes to the end.
_IN_TURN = (Verb.CLAIM, Verb.ISSUE, Verb.TRANSITION, Verb.READ, Verb.FORGET)


class OperationQueue:
    """First in, first out within a verb; a batch is of one verb.

    Args:
        max_batch: operations in a batch at most.
        max_bytes: bytes of results in a batch at most.
        retire: called with each claim that was cancelled before it went out; it may put another one.
    """

    def __init__(self, *, max_batch: int, max_bytes: int, retire: Callable[[ClaimOp], None]) -> None:
        self._max_batch = max_batch
        self._max_bytes = max_bytes
        self._retire = retire
        self._lanes: dict[Verb, deque[Op]] = {verb: deque() for verb in (*_URGENT, *_IN_TURN)}
        self._turns = deque(_IN_TURN)
        self.claims = self._lanes[Verb.CLAIM]
        """The claims' own lane: the claim's path appends to it without a call."""
        self.others = 0
        """How many operations wait in the other lanes."""

    def put(self, op: Op) -> None:
        """Let an operation wait its turn."""
        if op.verb is not Verb.CLAIM:
            self.others += 1
        self._lanes[op.verb].append(op)

    def next_batch(self, free: int) -> list[Op]:
        """Take what goes out next, empty where nothing waits. `free`: how many batches may start now."""
        for verb in _URGENT:
            if (lane := self._lanes[verb]) and (batch := self._take(lane, free)):
                return batch
        turns = self._turns
        for _ in range(len(turns)):
            verb = turns[0]
            turns.rotate(-1)
            if (lane := self._lanes[verb]) and (batch := self._take(lane, free)):
                return batch
        return []

    def oldest(self) -> float | None:
        """When the operation that waits longest was accepted; None where nothing waits."""
        return min((lane[0].at for lane in self._lanes.values() if lane), default=None)

    def overdue(self, before: float) -> Iterator[Op]:
        """Take out, one by one, what was accepted at `before` or earlier."""
        for lane in self._lanes.values():
            while lane and lane[0].at <= before:
                self.others -= lane is not self.claims
                yield lane.popleft()

    def _take(self, lane: deque[Op], free: int) -> list[Op]:
        if lane is self.claims:
            return self.take_claims(free)
        batch: list[Op] = []
        weight = 0
        while lane and len(batch) < self._max_batch and weight < self._max_bytes:
            op = lane.popleft()
            weight += op.weight
            batch.append(op)
        self.others -= len(batch)
        return batch

    def take_claims(self, free: int) -> list[Op]:
        """Take the next batch of claims; `free` as for `next_batch`.

        What waits is spread over the free batches: the store then works on one while the loop reads another's
        answers. A claim that was cancelled before it went out is dropped: nobody waits for it.
        """
        lane = self.claims
        waiting = len(lane)
        size = min(waiting, self._max_batch, max(_MIN_BATCH, -(-waiting // free)))
        taken = [lane.popleft() for _ in range(size)]
        batch = [op for op in taken if not op.future.done()]
        if len(batch) != size:
            for op in taken:
                if op.future.done():
                    self._retire(cast(ClaimOp, op))
            return batch or (self.take_claims(free) if lane else [])
        return batch
