"""What LocalLRU answered in an outage comes home: real servers, several gates, each as if in a process of its own.

A `LocalLRU` of its own is what a process of its own is: nothing else is shared but Redis.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import pytest

from fastdedup import (
    BreakerState,
    Claim,
    ClaimLostError,
    LocalLRU,
    Outcome,
    TransitionOutcome,
    UnavailableError,
)
from fastdedup.events import BreakerClosed, BreakerOpened, Conflict, Replayed, Unreplayed

from ..fixtures import async_fixture
from ..heard import HeardGate
from ..proxy import Fate, Proxy, proxied
from ..servers import RedisServer
from ..waiting import wait_until

T = TypeVar("T")
TIMEOUT = 0.5
"""Seconds: a frozen server costs its first callers as much."""


class Gate(HeardGate):
    """A process: a gate with its own policy, and what it reported."""

    def __init__(self, url: str, maxsize: int = 1000, **options: Any) -> None:
        self.policy = LocalLRU(maxsize, **options)
        super().__init__(
            url, namespace="shop", timeout=TIMEOUT, known_duplicates=0, on_unavailable=self.policy
        )

    async def came_home(self) -> None:
        await wait_until(
            lambda: not self.policy.lines and self.dedup.breaker is BreakerState.CLOSED,
            description="the journal is empty",
        )

    async def noticed(self) -> None:
        """The outage: from now on nothing is tried, and nothing takes long."""
        numbers = itertools.count()
        while self.dedup.breaker is not BreakerState.OPEN:
            await self.dedup.claim(f"notices {next(numbers)}")


class Site:
    """A server whose data survive, and a fault that can strike it."""

    def __init__(self, fault: str, server: RedisServer, stack: AsyncExitStack) -> None:
        self.fault = fault
        self.server = server
        self._stack = stack
        self.proxies: list[Proxy] = []

    async def gate(self, **options: Any) -> Gate:
        """One more process, with its own way to the server."""
        proxy = await self._stack.enter_async_context(proxied(self.server, f"way{len(self.proxies)}.sock"))
        self.proxies.append(proxy)
        gate = Gate(proxy.url, **options)
        await self._stack.enter_async_context(gate.dedup)
        return gate

    def strike(self) -> None:
        if self.fault == "killed":
            self.server.kill()
        elif self.fault == "frozen":
            self.server.freeze()
        else:
            for proxy in self.proxies:
                proxy.follow(lambda name: Fate.CUT)
                proxy.cut()

    async def heal(self) -> None:
        if self.fault == "killed":
            await asyncio.to_thread(self.server.start)
        elif self.fault == "frozen":
            self.server.thaw()
        else:
            for proxy in self.proxies:
                proxy.forward()

    async def come_home(self, *gates: Gate) -> None:
        """Heal, and wait until the store has what these have answered by themselves."""
        await self.heal()
        for gate in gates:
            await gate.came_home()


@asynccontextmanager
async def site_of(fault: str) -> AsyncIterator[Site]:
    with RedisServer("--appendonly", "yes", "--appendfsync", "always") as server:
        async with AsyncExitStack() as stack:
            yield Site(fault, server, stack)


each_fault = pytest.mark.parametrize("fault", ["killed", "frozen", "cut off"])


async def give_away_twice(
    site: Site, settled: str, gates: tuple[Gate, Gate], claim: Callable[[Gate], Awaitable[Claim]]
) -> tuple[Claim, Claim, str]:
    """Let two processes give a key away. Return both claims, and the one that the last home reports as kept.

    The first home is in Redis; the last home meets it there, and a success outranks all but a success.
    """
    first, last = gates
    site.strike()
    a, b = await claim(first), await claim(last)
    assert a.acquired
    assert b.acquired
    if settled != "the last home":
        await a.complete("a")
    if settled != "the first home":
        await b.complete("b")
    for gate, proxy in zip(gates, site.proxies, strict=True):
        proxy.forward()
        await gate.came_home()
    kept = "ours" if settled == "the last home" else "theirs"
    assert first.of(Conflict) == []
    winner = "b" if kept == "ours" else "a"
    for gate in gates:
        found = await claim(gate)
        assert (found.result, found.degraded) == (winner, False)
    if settled != "both":
        with pytest.raises(ClaimLostError):
            await (a if kept == "ours" else b).complete("too late")
    return a, b, kept


each_settling = pytest.mark.parametrize("settled", ["both", "the first home", "the last home"])


site = async_fixture(lambda: site_of("killed"))


@each_settling
async def test_of_two_processes_that_both_gave_a_key_away_one_result_stands_and_both_owners_are_named(
    settled: str,
) -> None:
    async with site_of("cut off") as site:
        gates = await site.gate(), await site.gate()
        a, b, kept = await give_away_twice(site, settled, gates, lambda gate: gate.dedup.claim("order"))
        assert gates[1].of(Conflict) == [Conflict("shop", "order", b.owner, a.owner, kept)]
        assert gates[1].of(Replayed)[-1].conflicts == 1


async def lose_and_go_away(site: Site, gates: tuple[Gate, Gate], work: Callable[[Gate], Awaitable[T]]) -> T:
    """Let both work in an outage, and the last home lose. Return its work, at the beginning of the next outage."""
    site.strike()
    _, lost = [await work(gate) for gate in gates]
    for gate, proxy in zip(gates, site.proxies, strict=True):
        proxy.forward()
        await gate.came_home()
    assert [event.kept for event in gates[1].of(Conflict)] == ["theirs"]
    site.strike()
    return lost


async def claim_in_turn(gates: tuple[Gate, Gate], gate: Gate, is_done: bool, **options: Any) -> Claim:
    """Claim a key; complete it, unless this is the last home and its work is not done."""
    claim = await gate.dedup.claim("k", **options)
    if is_done or gate is gates[0]:
        await claim.complete(gate is gates[0])
    return claim


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_process_repeats_no_work_in_the_outage_after_its_conflict(is_done: bool) -> None:
    """The store was not asked for the key in between, so this process does not know the record that it keeps."""
    async with site_of("cut off") as site:
        gates = _, last = await site.gate(), await site.gate()
        lost = await lose_and_go_away(site, gates, lambda gate: claim_in_turn(gates, gate, is_done))
        again = await last.dedup.claim("k")
        if is_done:
            assert (again.outcome, again.result) == (Outcome.SUCCEEDED, False)
        else:
            assert again.outcome is Outcome.IN_PROGRESS
            with pytest.raises(UnavailableError):
                await lost.complete(within=0)
        await site.come_home(*gates)
        assert (await last.dedup.claim("k")).result is True
        assert len(last.of(Conflict)) == 1


async def test_no_more_does_a_machine() -> None:
    async with site_of("cut off") as site:
        gates = first, last = await site.gate(), await site.gate()
        table = {"new": ("paid", "canceled"), "paid": (), "canceled": ()}
        orders = {gate: gate.dedup.machine("order", initial="new", transitions=table) for gate in gates}
        ends = {first: "canceled", last: "paid"}
        await lose_and_go_away(site, gates, lambda gate: orders[gate].transition("42", to=ends[gate]))
        again = await orders[last].transition("42", to="paid")
        assert (again.outcome, again.degraded) == (TransitionOutcome.ALREADY, True)
        await site.come_home(*gates)
        assert (await orders[last].transition("42", to="paid")).state == "canceled"
        assert len(last.of(Conflict)) == 1


async def test_two_outages_in_a_row_are_one_story(site: Site) -> None:
    """Claimed in the first, settled in the second, and a takeover counts on."""
    ours, theirs = await site.gate(), await site.gate()
    site.strike()
    claim = await ours.dedup.claim("order")
    freed = await ours.dedup.claim("freed")
    await freed.release()
    await site.come_home(ours)
    site.strike()
    await claim.complete("done")
    taken = await ours.dedup.claim("freed")
    assert taken.acquired
    assert taken.fence > freed.fence
    await site.come_home(ours, theirs)
    assert (await theirs.dedup.claim("order")).result == "done"
    record = await theirs.dedup.get("freed")
    assert record is not None
    assert (record.owner, record.fence) == (taken.owner, taken.fence)
    assert ours.of(Conflict) == []
    assert sum(event.adopted for event in ours.of(Replayed)) == 4, "each record that came home, once"
    assert len(ours.of(BreakerOpened)) == len(ours.of(BreakerClosed))


async def test_closing_in_an_outage_reports_each_key_that_redis_never_got(site: Site) -> None:
    ours = await site.gate()
    held = await ours.dedup.claim("settled")
    site.strike()
    await held.complete()
    await ours.noticed()
    claim = await ours.dedup.claim("claimed")
    await (await ours.dedup.claim("freed")).release()
    await ours.dedup.aclose()
    left = {event.key: event.owner for event in ours.of(Unreplayed) if "notices" not in event.key}
    assert left == {"settled": held.owner, "claimed": claim.owner}


@each_fault
async def test_who_waits_in_another_process_gets_the_result_of_the_outage(fault: str) -> None:
    """It waits for Redis' word, which comes when the result has been brought home."""
    async with site_of(fault) as site:
        ours, theirs = await site.gate(), await site.gate()
        claim = await ours.dedup.claim("order", lease=60.0)
        waiting = asyncio.create_task(theirs.dedup.claim("order", wait=30.0))
        await wait_until(lambda: theirs.dedup.gate.connection.wakeups.waiting, description="it waits")
        site.strike()
        await claim.complete("done")
        await site.heal()
        seen = await waiting
        assert (seen.outcome, seen.result) == (Outcome.SUCCEEDED, "done")


async def test_who_waits_here_while_redis_comes_back_is_woken_there(site: Site) -> None:
    ours, theirs = await site.gate(), await site.gate()
    site.strike()
    claim = await ours.dedup.claim("order", lease=60.0)
    waiting = asyncio.create_task(ours.dedup.claim("order", wait=30.0))
    await wait_until(lambda: ours.dedup.gate.connection.wakeups.waiting, description="it waits")
    await site.come_home(ours, theirs)
    again = await theirs.dedup.claim("order", owner=claim.owner)
    assert again.acquired
    await again.complete("by another process, in its name")
    seen = await waiting
    assert (seen.result, seen.degraded) == ("by another process, in its name", False)


async def test_a_token_of_the_outage_is_used_once_wherever_it_is_shown_afterwards(site: Site) -> None:
    ours, theirs = await site.gate(), await site.gate()
    site.strike()
    used, fresh, redeemed = [await ours.dedup.tokens.issue("user:7") for _ in range(3)]
    assert await ours.dedup.tokens.consume(used, "user:7") is Outcome.ACQUIRED
    held = await ours.dedup.tokens.redeem(redeemed, "user:7")
    await site.come_home(ours, theirs)
    consume = theirs.dedup.tokens.consume
    assert await consume(used, "user:7") is Outcome.SUCCEEDED
    assert await consume(fresh, "user:8") is Outcome.MISMATCH
    assert await consume(fresh, "user:7") is Outcome.ACQUIRED
    assert await ours.dedup.tokens.consume(fresh, "user:7") is Outcome.SUCCEEDED
    await held.complete("form sent")
    assert (await theirs.dedup.tokens.redeem(redeemed, "user:7")).result == "form sent"


@pytest.mark.no_cover
async def test_thousands_of_keys_come_home_while_claims_go_on(site: Site) -> None:
    """No key of the outage is given away again meanwhile, here or to a process that asks only Redis."""
    count = 5_000
    ours = await site.gate(maxsize=2 * count)
    site.strike()
    await ours.noticed()
    for start in range(0, count, 1000):
        claims = await ours.dedup.claim_many([str(number) for number in range(start, start + 1000)])
        await asyncio.gather(*(claim.complete(claim.key) for claim in claims))
    assert ours.policy.lines >= count
    await site.heal()
    fresh = degraded = 0
    for numbers in itertools.cycle(range(start, start + 50) for start in range(0, count, 50)):
        known = await ours.dedup.claim_many([str(number) for number in numbers])
        assert [claim.result for claim in known] == [str(number) for number in numbers]
        degraded += known[0].degraded
        fresh += (await ours.dedup.claim(f"fresh {fresh}")).acquired
        if not ours.policy.lines:
            break
    assert fresh > 10
    assert degraded
    assert ours.of(Conflict) == ours.of(Unreplayed) == []
    assert sum(event.adopted for event in ours.of(Replayed)) >= count
    with site.server.client() as raw:
        assert raw.dbsize() >= count
