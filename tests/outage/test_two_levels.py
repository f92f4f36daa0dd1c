"""Claims whose success a ledger remembers, while replies are lost and while Redis is away."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from fastdedup import Claim, ClaimLostError, Dedup, Ledger, Outcome
from fastdedup.events import Conflict, Unreplayed
from fastdedup.kernel.operations import ForgetOp

from ..fixtures import async_fixture
from ..proxy import Fate, proxied
from ..servers import RedisServer
from .test_reconciliation import (
    Gate,
    Site,
    claim_in_turn,
    each_settling,
    give_away_twice,
    lose_and_go_away,
    site_of,
)

WEEK = timedelta(days=7)


def gate(url: str, **options: Any) -> Dedup:
    return Dedup(url, **{"namespace": "t", "timeout": 5.0, **options})


site = async_fixture(lambda: site_of("cut off"))


async def test_lost_replies_are_not_noticed(redis_url: str, redis_server: RedisServer) -> None:
    """Of the claim, and of its completion; also where the server has lost the scripts."""
    async with proxied(redis_server) as proxy, gate(proxy.url) as dedup:
        ledger = dedup.ledger("done", window=WEEK, capacity=1000)
        await ledger.seen("ledger is founded")
        with redis_server.client() as raw:
            raw.script_flush()
            proxy.lose("claim")
            claim = await dedup.claim("k", remember=ledger)
            assert (claim.outcome, claim.attempt) == (Outcome.ACQUIRED, 1)
            raw.script_flush()
            proxy.lose("settle")
            await claim.complete("done")
        assert proxy.lost["claim"] == proxy.lost["settle"] == 1
        assert (await dedup.claim("k", remember=ledger)).result == "done"
        assert (await ledger.stats()).ids == 1


# LocalLRU


def ledger_of(gate: Gate) -> Ledger:
    return gate.dedup.ledger("done", window=WEEK, capacity=1000)


async def end_echo(gate: Gate, claim: Claim) -> None:
    """Do what the end of the echo's minute does."""
    await gate.dedup.gate.run(ForgetOp(claim.settlement.held_key[0]))


@pytest.mark.parametrize("fault", ["killed", "frozen"])
async def test_claims_of_an_outage_come_home(fault: str) -> None:
    async with site_of(fault) as site:
        ours, theirs = await site.gate(), await site.gate()
        here, there = ledger_of(ours), ledger_of(theirs)
        gate, other = ours.dedup, theirs.dedup
        for dedup, ledger, key in ((gate, here, "done"), (other, there, "theirs")):
            await (await dedup.claim(key, remember=ledger)).complete(key)
        assert (await gate.claim("theirs", remember=here)).result == "theirs"
        held = await gate.claim("held", remember=here)
        site.strike()
        for key in ("done", "theirs"):
            told = await gate.claim(key, remember=here)
            assert (told.outcome, told.result, told.degraded) == (Outcome.SUCCEEDED, key, True)
        await held.complete("held")
        new, working, released = [
            await gate.claim(key, remember=here, lease=60.0) for key in ("new", "working", "released")
        ]
        assert new.acquired
        assert new.degraded
        await new.complete("new")
        await released.release()
        assert (await gate.claim("new", remember=here)).result == "new"
        assert (await gate.claim("working", remember=here)).outcome is Outcome.IN_PROGRESS
        assert await here.first_many(["new", "held", "done"]) == [False] * 3
        await site.come_home(ours, theirs)
        assert [(await other.claim(key, remember=there)).result for key in ("new", "held")] == ["new", "held"]
        assert (await other.claim("working", remember=there)).outcome is Outcome.IN_PROGRESS
        assert (await other.claim("released", remember=there)).attempt == 2
        await working.complete()
        for claim in (new, held, working):
            await end_echo(theirs, claim)
        keys = ["new", "held", "working", "done", "theirs"]
        assert all([(await other.claim(key, remember=there)).outcome == "succeeded" for key in keys])
        assert await there.first_many([*keys, "released"]) == [False] * 5 + [True]
        assert ours.of(Conflict) == ours.of(Unreplayed) == []


@pytest.mark.parametrize("opened", ["before", "in the outage"])
@each_settling
async def test_of_two_processes_that_both_gave_a_key_away_one_hears(
    site: Site, settled: str, opened: str
) -> None:
    """Also where each founded the ledger itself: the records find their places by the store's form."""
    gates = first, last = await site.gate(), await site.gate()
    ledgers = {first: ledger_of(first), last: ledger_of(last)}
    if opened == "before":
        for ledger in ledgers.values():
            await ledger.open()
    _, b, kept = await give_away_twice(
        site, settled, gates, lambda gate: gate.dedup.claim("k", remember=ledgers[gate])
    )
    assert [(event.key, event.ours, event.kept) for event in last.of(Conflict)] == [("k", b.owner, kept)]
    assert [await ledger.seen("k") for ledger in ledgers.values()] == [True, True]


@pytest.mark.parametrize("given", ["here", "by Redis"])
@pytest.mark.parametrize("state", ["at work", "failed", "released", "done"])
async def test_what_the_ledger_knows_by_then_is_not_done_again(site: Site, state: str, given: str) -> None:
    """Another process completed it, and its echo is over: the outage's record must not stand before the ledger."""
    ours, theirs = await site.gate(), await site.gate()
    here, there = ledger_of(ours), ledger_of(theirs)
    await here.open()
    if given == "here":
        site.strike()
    lease = 0.5 if given == "by Redis" else 60.0  # in Redis it has to end before another process has the key
    claim = await ours.dedup.claim("k", remember=here, lease=lease)
    site.strike()
    if given == "by Redis":
        await ours.noticed()
    if state == "failed":
        await claim.fail("no")
    elif state == "released":
        await claim.release()
    elif state == "done":
        await claim.complete("ours")
        await end_echo(ours, claim)
    site.proxies[1].forward()
    await theirs.came_home()
    done = await theirs.dedup.claim("k", remember=there, wait=5.0)
    await done.complete("theirs")
    await end_echo(theirs, done)
    site.proxies[0].forward()
    await ours.came_home()
    told = [event.kept for event in ours.of(Conflict)]
    nobody_insists = state == "released" or (state == "at work" and given == "by Redis")
    assert told == ([] if nobody_insists else ["theirs"])
    for gate, ledger in ((ours, here), (theirs, there)):
        found = await gate.dedup.claim("k", remember=ledger)
        assert (found.outcome, found.remembered) == (Outcome.SUCCEEDED, True)
    if state == "at work":
        with pytest.raises(ClaimLostError):
            await claim.complete("too late")


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_process_repeats_no_work_in_the_outage_after_its_conflict(site: Site, is_done: bool) -> None:
    """The ledger has reported that the work was done elsewhere."""
    gates = _, last = await site.gate(), await site.gate()
    ledgers = {gate: ledger_of(gate) for gate in gates}
    for ledger in ledgers.values():
        await ledger.open()
    await lose_and_go_away(
        site, gates, lambda gate: claim_in_turn(gates, gate, is_done, remember=ledgers[gate])
    )
    again = await last.dedup.claim("k", remember=ledgers[last])
    assert (again.outcome, again.degraded) == (Outcome.SUCCEEDED, True)
    await site.come_home(*gates)
    assert len(last.of(Conflict)) == 1


@pytest.mark.parametrize("how", ["complete", "release", "renew", "fail"])
async def test_a_claim_finds_its_record_by_the_stores_form(site: Site, how: str) -> None:
    """The process began in the outage, and founded the ledger by a secret of its own."""
    theirs = await site.gate()
    there = await ledger_of(theirs).open()
    site.strike()
    ours = await site.gate()
    site.proxies[1].follow(lambda name: Fate.CUT)
    site.proxies[1].cut()
    claim = await ours.dedup.claim("k", remember=ledger_of(ours))
    assert claim.degraded
    await site.come_home(ours, theirs)
    assert (await theirs.dedup.claim("k", remember=there)).outcome is Outcome.IN_PROGRESS
    await getattr(claim, how)()
    found = await theirs.dedup.claim("k", remember=there)
    expected = {"complete": "succeeded", "release": "acquired", "renew": "in_progress", "fail": "failed"}
    assert found.outcome == expected[how]
    assert await there.seen("k") is (how == "complete")


async def test_a_claim_ends_in_a_ledger_that_was_founded_anew(site: Site) -> None:
    """The ledger has one bucket, so the record stays where it is, and its id has another digest."""
    ours, theirs = await site.gate(), await site.gate()
    here, there = [gate.dedup.ledger("one", window=WEEK, capacity=50) for gate in (ours, theirs)]
    await here.open()
    site.strike()
    claim = await ours.dedup.claim("k", remember=here)
    with site.server.client() as raw:
        raw.flushall()
    site.proxies[1].forward()
    await theirs.came_home()
    assert await there.seen("k") is False
    site.proxies[0].forward()
    await ours.came_home()
    await claim.complete()
    assert await there.first("k") is False
