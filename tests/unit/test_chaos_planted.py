"""The chaos harness catches clients that are broken on purpose, and lets their unbroken twins pass."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fastdedup import Dedup, LocalLRU, Reject, UnavailableError
from fastdedup.protocol.operations import Op, Reply, Verb
from fastdedup.stores import make_store
from fastdedup.stores.base import Store
from fastdedup.stores.memory import MemoryStore
from tests.chaos import planted
from tests.chaos.checker import Findings, check
from tests.chaos.history import Event, History, Recorder
from tests.chaos.rules import FORGOTTEN, PHANTOM, STALE, TOKEN_TWICE, TWO_OWNERS
from tests.chaos.workload import Client, Shared

ENOUGH = 40.0
"""Seconds after which a bug that still does not show is a bug that is not found."""
FAIR = 400
"""Operations that an unbroken twin has to pass."""


class Down(planted.Wrapped):
    """A store that cannot answer."""

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        raise UnavailableError("it is down")


class Scene:
    """Two gates over one store in one loop, as two processes would be, with clients at both."""

    def __init__(self, stores: Sequence[Store | str], policies: Sequence[Any], policy: str) -> None:
        self.events: list[Event] = []
        origin = time.monotonic_ns()
        self._shares = [Shared(self._recorder(n), origin) for n in range(len(stores))]
        self._gates = [
            Dedup(store, on_unavailable=fallback, timeout=1.0, known_duplicates=0.0, on_event=shared.on_event)
            for store, fallback, shared in zip(stores, policies, self._shares, strict=True)
        ]
        for shared in self._shares:
            shared.publish = self._publish
        self._policy = policy

    def _recorder(self, n: int) -> Recorder:
        recorder = Recorder(f"w{n}")
        recorder.events = self.events
        return recorder

    def _publish(self, policy: str, token: str) -> None:
        for shared in self._shares:
            shared.learn(policy, token)

    async def run_until(self, enough: Callable[[Findings, int], bool]) -> Findings:
        """Let clients work until the findings are enough; returns them."""
        for gate in self._gates:
            await gate.open()
        clients = [
            asyncio.create_task(
                Client(f"c{n}{k}", self._policy, gate, shared, random.Random(f"{n}{k}")).run()
            )
            for n, (gate, shared) in enumerate(zip(self._gates, self._shares, strict=True))
            for k in range(4)
        ]
        try:
            return await self._watch(enough)
        finally:
            for shared in self._shares:
                shared.stopped = True
            await asyncio.gather(*clients)
            for gate in self._gates:
                await gate.aclose()
            failures = [failure for shared in self._shares for failure in shared.failures]
            assert not failures, failures[0]

    async def _watch(self, enough: Callable[[Findings, int], bool]) -> Findings:
        async with asyncio.timeout(ENOUGH):
            while True:
                await asyncio.sleep(0.1)
                findings = check(History([event for event in self.events if event.end is not None]))
                if enough(findings, len(self.events)):
                    return findings


def over_memory(wrap: Callable[[Store], Store]) -> Scene:
    """Two gates over one memory store."""
    store = MemoryStore()
    return Scene([wrap(store), wrap(store)], [Reject(), Reject()], "reject")


def in_outage(policy: Callable[[], Any]) -> Scene:
    """Two gates without a store."""
    return Scene([Down(MemoryStore()), Down(MemoryStore())], [policy(), policy()], "local")


SCENES: dict[str, tuple[Callable[[], Scene], Callable[[], Scene], set[str]]] = {
    "unowned-release": (
        lambda: over_memory(planted.UnownedRelease),
        lambda: over_memory(planted.Wrapped),
        {TWO_OWNERS, STALE},
    ),
    "new-owner-retry": (
        lambda: over_memory(planted.NewOwnerRetry),
        lambda: over_memory(planted.Wrapped),
        {PHANTOM},
    ),
    "presumed-winner": (
        lambda: over_memory(planted.PresumedWinner),
        lambda: over_memory(planted.Wrapped),
        {TWO_OWNERS, STALE},
    ),
    "evicting-lru": (
        lambda: in_outage(planted.EvictingLRU),
        lambda: in_outage(LocalLRU),
        {TWO_OWNERS, TOKEN_TWICE, FORGOTTEN},
    ),
}


@pytest.mark.parametrize("bug", planted.BUGS)
async def test_a_planted_bug_is_caught(bug: str) -> None:
    broken, _, kinds = SCENES[bug]
    findings = await broken().run_until(lambda found, _: bool(found.violations))
    assert {conflict.kind for conflict in findings.violations} & kinds


@pytest.mark.parametrize("bug", planted.BUGS)
async def test_its_unbroken_twin_passes(bug: str) -> None:
    _, whole, _ = SCENES[bug]
    findings = await whole().run_until(lambda found, size: bool(found.violations) or size >= FAIR)
    assert not findings.violations, "\n".join(conflict.text() for conflict in findings.violations)


async def test_planted_bugs_are_caught_on_a_real_server(redis_url: str) -> None:
    stores = [planted.UnownedRelease(make_store(redis_url, 1.0)) for _ in range(2)]
    scene = Scene(stores, [Reject(), Reject()], "reject")
    findings = await scene.run_until(lambda found, _: bool(found.violations))
    assert {conflict.kind for conflict in findings.violations} & {TWO_OWNERS, STALE}
