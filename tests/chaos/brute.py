"""The same question by brute force: some order of effects explains a small history, or none does.

A tiny model of one record, and a search over all orders and moments. Far too slow for a real
history, and simple enough to be believed: the interval checker is held against it. Time is whole
milliseconds, as on the server; event times must be multiples of a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .history import MS, TAKING, UNSURE, Event


@dataclass(frozen=True, slots=True)
class State:
    """A record. Times in ms; `kind` as in the Lua scripts: '' absent, I P R S F."""

    kind: str = ""
    owner: str = ""
    fence: int = 0
    """0: given to a claim whose answer nobody saw."""
    attempt: int = 0
    deadline: int = 0
    expires: int = 0
    value: Any = None
    highest: int = 0
    """The highest fence that anybody was told; it outlives the record."""


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
                after = apply(_aged(state, moment), event, moment)
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


def _aged(state: State, now: int) -> State:
    return State(highest=state.highest) if state.kind and state.expires <= now else state


def apply(state: State, event: Event, now: int) -> State | None:
    """Return the state after `event` at `now` ms, or None where its answer does not fit."""
    outcome, after = act(state, event, now)
    if event.outcome in UNSURE:
        return after
    if outcome != event.outcome:
        return None
    if outcome in ("succeeded", "failed"):
        return after if event.result == state.value else None
    if outcome != "acquired" or event.verb == "consume":
        return after
    if event.attempt and event.attempt != after.attempt:
        return None
    if _reentered(state, event, now):
        if after.fence == event.fence:
            return after
        if after.fence == 0 and event.fence > after.highest:
            return replace(after, fence=event.fence, highest=event.fence)
        return None
    return replace(after, fence=event.fence, highest=event.fence) if event.fence > state.highest else None


def act(state: State, event: Event, now: int) -> tuple[str, State]:
    """Return the model's answer to `event`, and the state after it."""
    if event.verb in TAKING:
        return _take(state, event, now)
    if event.verb == "issue":
        until = now + event.ttl // MS
        return "ok", State("I", event.owner, attempt=0, expires=until, highest=state.highest)
    held = state.kind and state.owner == event.owner and state.fence in (0, event.fence)
    if not held:
        return "lost", state
    return _settle(state, event, now)


def _take(state: State, event: Event, now: int) -> tuple[str, State]:
    if not state.kind and event.verb in ("redeem", "consume"):
        return "unknown", state
    if state.kind in ("S", "F"):
        return ("succeeded" if state.kind == "S" else "failed"), state
    lease, keep = event.lease // MS, (event.lease + event.ttl) // MS
    if _reentered(state, event, now):
        deadline = max(state.deadline, now + lease)
        return "acquired", replace(state, deadline=deadline, expires=max(state.expires, now + keep))
    if state.kind == "P" and state.deadline > now:
        return "in_progress", state
    taken = State("P", event.owner, 0, state.attempt + 1, now + lease, now + keep, None, state.highest)
    if event.verb == "consume":
        taken = replace(taken, kind="S", expires=now + event.ttl // MS)
    return "acquired", taken


def _reentered(state: State, event: Event, now: int) -> bool:
    return state.kind == "P" and state.deadline > now and bool(event.owner) and state.owner == event.owner


def _settle(state: State, event: Event, now: int) -> tuple[str, State]:
    if event.verb == "renew":
        if state.kind != "P":
            return "lost", state
        lease, keep = event.lease // MS, (event.lease + event.ttl) // MS
        return "ok", replace(state, deadline=now + lease, expires=now + keep)
    target = {"complete": "S", "fail": "F", "release": "R"}[event.verb]
    if state.kind == target:
        return "ok", state
    if state.kind != "P":
        return "lost", state
    if target == "R":
        return "ok", replace(state, kind="R")
    return "ok", replace(state, kind=target, value=event.value, expires=now + event.ttl // MS)
