"""A planned failover forgot keys that a replica had confirmed, and no event told of it."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from fastdedup import Dedup, UnavailableError
from fastdedup.events import Event, PrimarySwitched

from ..topologies import SentinelGroup

WaitUntil = Callable[..., Any]


@pytest.fixture
def group() -> Iterator[SentinelGroup]:
    group = SentinelGroup()
    try:
        yield group.start()
    finally:
        group.stop()


class Gate:
    """A gate, and what it reports of other primaries."""

    def __init__(self, url: str) -> None:
        self.events: list[Event] = []
        self.dedup = Dedup(url, namespace="t", on_event=self.events.append)

    @property
    def switches(self) -> list[Event]:
        return [event for event in self.events if isinstance(event, PrimarySwitched)]

    @property
    def watches(self) -> Any:
        """The address of the primary that its watch has seen last."""
        store: Any = self.dedup._namespace.connection.store
        return store._watch._former


async def answers(dedup: Dedup) -> bool:
    """True once the store answers a claim."""
    try:
        await dedup.claim("k")
    except UnavailableError:
        return False
    return True


async def test_each_gate_reports_a_planned_failover_once(group: SentinelGroup, wait_until: WaitUntil) -> None:
    """Also a gate that asks nothing meanwhile."""
    gates = [Gate(group.url), Gate(group.url)]
    async with AsyncExitStack() as stack:
        for gate in gates:
            await stack.enter_async_context(gate.dedup)
        await gates[0].dedup.claim("k")
        await wait_until(lambda: all(gate.watches for gate in gates), description="they watch")
        await to_thread(group.failover)
        await wait_until(lambda: all(gate.switches for gate in gates), description="it is reported")
        await wait_until(lambda: answers(gates[0].dedup), description="the other primary answers")
        store: Any = gates[0].dedup._namespace.connection.store
        assert [gate.switches for gate in gates] == [[PrimarySwitched(store.name)]] * 2


async def test_a_crash_of_the_primary_is_no_switch(group: SentinelGroup, wait_until: WaitUntil) -> None:
    """The breaker tells of it."""
    gate = Gate(group.url)
    async with gate.dedup:
        await wait_until(lambda: gate.watches, description="it watches")
        former = gate.watches
        await to_thread(group.primary().kill)
        await wait_until(lambda: gate.watches != former, description="another is the primary", deadline=60.0)
        await wait_until(lambda: answers(gate.dedup), description="it answers")
        assert gate.switches == []
