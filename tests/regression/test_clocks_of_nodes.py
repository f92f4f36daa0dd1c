"""A slot moved to a node whose clock was behind, and the fences of its forgotten keys fell.

Another client had not seen the faster node's latest time, only the time at which it had connected there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastdedup import Dedup
from fastdedup.events import ClockSkew, Event
from fastdedup.stores.redis.cluster.slot_table import slot_of

from ..stepping import SteppingClock
from ..topologies import ClusterGroup, Member

WaitUntil = Callable[..., Any]
SECONDS = 10.0
KEYS = [f"{{k}}{number}" for number in range(300)]


class SkewedGroup(ClusterGroup):
    """Three primaries and three replicas. The clock of a primary is behind, that of another's replica is ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.behind, self.ahead = self.members[1], self.members[3]
        for member, seconds in ((self.behind, SECONDS), (self.ahead, -SECONDS)):
            clock = SteppingClock(member.folder)
            clock.set_back(seconds)
            member.env = clock.env


@pytest.fixture(scope="module")
def group() -> Iterator[SkewedGroup]:
    group = SkewedGroup()
    try:
        group.start()
        yield group
    finally:
        group.stop()


@pytest.mark.parametrize("claimed_by_another", [True, False], ids=["another gate", "the same gate"])
async def test_the_fence_rises_as_a_slot_moves_to_a_slow_node(
    claimed_by_another: bool, group: SkewedGroup
) -> None:
    slot = slot_of(b"{k}")
    source = next(member for member in group.primaries() if member is not group.behind)
    if group.owner(slot) is not source:
        group.migrate_slot(slot, source)
    async with Dedup(group.url, namespace="t") as gate, Dedup(group.url, namespace="t") as other:
        claimant = other if claimed_by_another else gate
        before = await claimant.claim_many(KEYS)
        for key in KEYS:
            await claimant.forget(key)
        group.migrate_slot(slot, group.behind)
        after = await gate.claim_many(KEYS)
        assert all(late.fence > early.fence for early, late in zip(before, after, strict=True))


async def test_a_node_whose_clock_is_off_is_an_event(group: SkewedGroup, wait_until: WaitUntil) -> None:
    """A primary's, and that of a replica, which nobody has asked for a key yet."""
    seen: list[Event] = []

    def skews() -> dict[str, float]:
        return {event.store: event.offset_seconds for event in seen if isinstance(event, ClockSkew)}

    async with Dedup(group.url, namespace="t", lease=30.0, on_event=seen.append):
        await wait_until(lambda: len(skews()) == 2, description="both clocks are reported")
    assert skews() == {
        name_of(group.behind): pytest.approx(-SECONDS, abs=0.5),
        name_of(group.ahead): pytest.approx(SECONDS, abs=0.5),
    }


async def test_a_clock_may_differ_by_a_tenth_of_the_lease(group: SkewedGroup, wait_until: WaitUntil) -> None:
    seen: list[Event] = []
    async with Dedup(group.url, namespace="t", lease=SECONDS * 11, on_event=seen.append) as gate:
        clocks = gate._namespace.connection.store._clocks  # type: ignore[attr-defined]
        await wait_until(lambda: clocks._timer, description="all clocks are read")
    assert not [event for event in seen if isinstance(event, ClockSkew)]


def name_of(member: Member) -> str:
    host, port = member.address
    return f"Redis at {host}:{port}"
