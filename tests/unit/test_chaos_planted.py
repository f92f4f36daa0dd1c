"""The chaos harness catches clients that are broken on purpose."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from fastdedup import Dedup, LocalLRU, Reject, UnavailableError
from fastdedup.kernel.operations import Op, Reply
from fastdedup.kernel.verbs import Verb
from fastdedup.stores.base import Store
from fastdedup.stores.memory import MemoryStore
from tests.chaos import planted
from tests.chaos.caller import Shared
from tests.chaos.checker import Findings, check
from tests.chaos.facts import GRACE
from tests.chaos.history import SECOND, Event, History, Recorder
from tests.chaos.ledgers import WRONGLY_KNOWN
from tests.chaos.leftovers import BURNT, HELD, SWALLOWED
from tests.chaos.machines import MOVED_TWICE, VERSION_TWICE
from tests.chaos.rules import FORGOTTEN, PHANTOM, STALE, TOKEN_TWICE, TWO_OWNERS
from tests.chaos.steps import KINDS
from tests.chaos.workload import Client

ENOUGH = 40.0
"""Seconds after which a bug that still does not show is a bug that is not found."""


class Down(planted.Wrapped):
    """A store that cannot answer."""

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        raise UnavailableError("it is down")


class Flaky(planted.Wrapped):
    """A store that is down every other 0.2 s."""

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        if int(time.monotonic() * 5) % 2:
            raise UnavailableError("it is down for a moment")
        return await self.inner.execute(verb, ops)


class Scene:
    """Two gates over one store in one loop, as two processes would be, with clients at both."""

    def __init__(
        self,
        stores: Sequence[Store | str],
        policies: Sequence[Any],
        policy: str,
        mix: Mapping[str, int] = KINDS,
    ) -> None:
        self.events: list[Event] = []
        origin = time.monotonic_ns()
        self._shares = [Shared(self._recorder(n), origin, mix=mix) for n in range(len(stores))]
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
        looking = asyncio.create_task(self._look_again())
        try:
            return await self._watch(enough)
        finally:
            looking.cancel()
            for shared in self._shares:
                shared.stopped = True
            await asyncio.gather(*clients)
            for gate in self._gates:
                await gate.aclose()
            failures = [failure for shared in self._shares for failure in shared.failures]
            assert not failures, failures[0]

    async def _look_again(self) -> None:
        """Look at what was given up more than a second ago, as workers do at the end of a run."""
        while True:
            left = [(shared, item) for shared in self._shares for item in shared.given_up]
            await asyncio.sleep(1.3 * GRACE / SECOND)
            for n, (shared, (policy, *rest)) in enumerate(left):
                gate = self._gates[self._shares.index(shared)]
                await Client(f"look{n}", policy, gate, shared, random.Random(0)).look_again(*rest)
                shared.given_up.remove((policy, *rest))

    async def _watch(self, enough: Callable[[Findings, int], bool]) -> Findings:
        async with asyncio.timeout(ENOUGH):
            while True:
                await asyncio.sleep(0.1)
                findings = check(History([event for event in self.events if event.end is not None]))
                if enough(findings, len(self.events)):
                    return findings


def over_memory(wrap: Callable[[Store], Store], mix: Mapping[str, int] = KINDS) -> Scene:
    """Two gates over one memory store."""
    store = MemoryStore()
    return Scene([wrap(store), wrap(store)], [Reject(), Reject()], "reject", mix)


def in_and_out(wrap: Callable[[Store], Store]) -> Scene:
    """Two gates over one memory store, of which one loses it for moments."""
    store = MemoryStore()
    return Scene([store, wrap(Flaky(store))], [LocalLRU(), LocalLRU()], "local", {"settle": 1})


def in_outage(policy: Callable[[], Any]) -> Scene:
    """Two gates without a store."""
    return Scene([Down(MemoryStore()), Down(MemoryStore())], [policy(), policy()], "local")


SCENES: dict[str, tuple[Callable[[], Scene], set[str]]] = {
    "unowned-release": (lambda: over_memory(planted.UnownedRelease), {TWO_OWNERS, STALE}),
    "new-owner-retry": (lambda: over_memory(planted.NewOwnerRetry), {PHANTOM}),
    "presumed-winner": (lambda: over_memory(planted.PresumedWinner), {TWO_OWNERS, STALE}),
    "lost-claim": (lambda: over_memory(planted.LostClaim, {"giveup": 1, "burn": 1}), {HELD, BURNT}),
    "moved-again": (lambda: over_memory(planted.MovedAgain, {"machine": 1}), {MOVED_TWICE, VERSION_TWICE}),
    "swallowed-conflict": (lambda: in_and_out(planted.SwallowedConflict), {SWALLOWED}),
    "renamed-ids": (lambda: over_memory(planted.RenamedIds, {"ledger": 1}), {WRONGLY_KNOWN}),
    "evicting-lru": (lambda: in_outage(planted.EvictingLRU), {TWO_OWNERS, TOKEN_TWICE, FORGOTTEN}),
}


def kinds_of(findings: Findings) -> set[str]:
    return {conflict.kind for conflict in findings.violations}


@pytest.mark.parametrize("bug", planted.BUGS)
async def test_a_planted_bug_is_caught(bug: str) -> None:
    broken, kinds = SCENES[bug]
    await broken().run_until(lambda found, _: bool(kinds_of(found) & kinds))  # or it takes too long
