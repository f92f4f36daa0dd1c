"""The same question by brute force: some order of effects explains a small history, or none does.

A search over all orders and moments, in which `tests/model/spec.py` does to the record what a store does. Far too
slow for a real history, and simple enough to be believed: the interval checker is held against it. Time is whole
milliseconds, as on the server; event times must be multiples of a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.model import spec
from tests.model.words import FAILED, SUCCEEDED, Claim, Issue, Record, Release, Renew, Reply, Settle

from .history import MS, TAKING, UNSURE, Event


@dataclass(frozen=True, slots=True)
class State:
    """What a key holds. Its fence is 0 if it was given to a claim whose answer nobody saw."""

    record: Record | None = None
    highest: int = 0
    """The highest fence that anybody was told; it outlives the record."""

    def told(self, fence: int) -> State:
        """Return the state in which the owner was told its fence."""
        assert self.record is not None
        return State(self.record._replace(fence=fence), fence)


def linearisable(events: Sequence[Event]) -> bool:
    """True where some order explains all answers. All events are of one key; the horizon is their last time."""
    horizon = max(max(event.start, event.end or 0) for event in events) // MS
    return _Search(events, horizon).run()


class _Search:
    def __init__(self, events: Sequence[Event], horizon: int) -> None:
        self._events = events
        self._horizon = horizon
        self._dead_ends: set[tuple[int, int, State]] = set()

    def run(self) -> bool:
        return self._from((1 << len(self._events)) - 1, 0, State())

    def _from(self, left: int, now: int, state: State) -> bool:
        if all(self._events[i].outcome in UNSURE for i in _bits(left)):
            return True  # what was never answered need not have happened
        if (left, now, state) in self._dead_ends:
            return False
        latest = min(self._latest(i) for i in _bits(left))
        for i in _bits(left):
            event = self._events[i]
            for moment in range(max(now, event.start // MS), latest + 1):
                after = apply(state, event, moment)
                if after is not None and self._from(left & ~(1 << i), moment, after):
                    return True
        self._dead_ends.add((left, now, state))
        return False

    def _latest(self, i: int) -> int:
        event = self._events[i]
        return self._horizon if event.outcome in UNSURE or event.end is None else event.end // MS


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def apply(state: State, event: Event, now: int) -> State | None:
    """Return the state after `event` at `now` ms, or None if its answer does not fit."""
    reply, after = act(state, event, now)
    if event.outcome in UNSURE:
        return after
    if reply.code.lower() != event.outcome:
        return None
    if reply.code in ("SUCCEEDED", "FAILED"):
        return after if event.result == (reply.result or None) else None
    if reply.code != "ACQUIRED" or event.verb == "consume":
        return after
    if event.attempt and event.attempt != reply.attempt:
        return None
    if not reply.fresh and reply.fence:
        return after if reply.fence == event.fence else None
    return after.told(event.fence) if event.fence > state.highest else None


def act(state: State, event: Event, now: int) -> tuple[Reply, State]:
    """Return the spec's answer to `event`, and the state after it. A fresh owner's fence is 0 until it is told."""
    record, unseen = state.record, False
    if record is not None and record.owner == event.owner and event.verb not in TAKING and not record.fence:
        record, unseen = record._replace(fence=event.fence), True  # by the claim that nobody saw
    after, reply = spec.step(record, operation(event), now * 1000)
    if after is not None and (unseen or (reply.code == "ACQUIRED" and reply.fresh)):
        after = after._replace(fence=0)
    return reply, State(after, state.highest)


def operation(event: Event) -> Any:
    """Return what the caller of an event has sent."""
    who: Any = event.owner or f"nobody {event.worker} {event.n} {event.start}"
    lease, ttl = event.lease // MS, event.ttl // MS
    match event.verb:
        case "redeem" | "consume":
            return Claim(who, lease, ttl if event.verb == "consume" else lease + ttl, mode=event.verb)
        case "issue":
            return Issue(who, ttl)
        case "renew":
            return Renew(who, event.fence, lease, lease + ttl)
        case "release":
            return Release(who, event.fence)
        case "complete" | "fail":
            state = SUCCEEDED if event.verb == "complete" else FAILED
            return Settle(who, event.fence, ttl, state, event.value or b"")
    return Claim(who, lease, lease + ttl)
