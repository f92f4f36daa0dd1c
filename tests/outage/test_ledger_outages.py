"""Ledgers in an outage: nobody is told of a duplicate of what nobody was told to be the first, and ids come home."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from fastdedup import Dedup, Ledger, Reject, UnavailableError
from fastdedup.events import Conflict, Degraded, Replayed, Unreplayed

from ..proxy import Fate, proxied
from ..servers import RedisServer
from ..waiting import answered, wait_until
from .test_reconciliation import Gate, site_of


def ledger_of(dedup: Dedup) -> Ledger:
    return dedup.ledger("orders", window=3600.0, capacity=10_000)


def gate(url: str, timeout: float = 3.0) -> Dedup:
    return Dedup(url, namespace="shop", timeout=timeout, on_unavailable=Reject(retry_after=7.0))


# The store's own answers, and the policy that refuses


@pytest.mark.parametrize("again", ["at-once", "by-its-owner", "by-another-owner", "one-by-one", "elsewhere"])
async def test_a_batch_cut_in_half_remembers_nothing(
    redis_url: str, redis_server: RedisServer, again: str
) -> None:
    """Redis remembers a part of it, and nobody hears of that."""
    ids = [str(number) for number in range(700)]
    async with proxied(redis_server) as proxy, gate(proxy.url, 0.5) as dedup, gate(redis_url) as other:
        ledger = ledger_of(dedup)
        assert await ledger.first_many(ids[:50]) == [True] * 50
        await ledger_of(other).seen("the ledger is founded")
        fates = iter([Fate.PASS, Fate.LOSE])
        proxy.follow(lambda name: next(fates, Fate.CUT) if name == "first" else Fate.CUT)
        with pytest.raises(UnavailableError) as error:
            await ledger.first_many(ids)
        assert error.value.retry_after == 7.0
        assert 50 < (await ledger_of(other).stats()).ids < 700
        proxy.forward()
        expected = [number >= 50 for number in range(700)]
        if again == "elsewhere":
            await wait_until(lambda: not len(dedup.gate.connection.orphans), description="all is taken back")
            assert await ledger_of(other).first_many(ids) == expected
        elif again == "one-by-one":
            answers = [await answered(partial(ledger.first, each)) for each in ids[:300]]
            assert answers == expected[:300]
        else:
            owner = {"by-its-owner": error.value.owner, "by-another-owner": "me"}.get(again)
            assert await answered(partial(ledger.first_many, ids, owner=owner)) == expected
        await wait_until(
            lambda: not len(dedup.gate.connection.orphans), description="nothing is left to undo"
        )
        assert not any(await ledger_of(other).first_many(ids[:300]))


async def test_an_id_that_is_retried_has_each_orphan_once(redis_server: RedisServer) -> None:
    """A retry takes the place of the call before it. So long lists of repeats would slow down each further retry."""
    lost = ("first", "forget_id")
    async with proxied(redis_server) as proxy, gate(proxy.url, 0.1) as dedup:
        ledger, orphans = ledger_of(dedup), dedup.gate.connection.orphans
        assert await ledger.first("before")
        proxy.follow(lambda name: Fate.LOSE if name in lost else Fate.PASS)
        for _ in range(30):
            with pytest.raises(UnavailableError):
                await ledger.first("order:1")
        (place,) = {orphan.place for _, orphan in orphans.listed()}
        found = [held_key for held_key, _ in orphans.at(place)]
        assert len(found) == len(set(found))
        proxy.forward()
        assert await answered(partial(ledger.first, "order:1"))


async def test_a_killed_server_refuses_and_takes_ids_again() -> None:
    """Also where the ledger was never opened: the policy names the time to wait."""
    async with site_of("killed") as site, gate(site.server.url) as dedup:
        known, unknown = ledger_of(dedup), dedup.ledger("unknown", window=60.0, capacity=10)
        assert await known.first("id") is True
        site.strike()
        for ask in (known.first("new"), known.first_many(["new"]), known.seen("id"), unknown.first("new")):
            with pytest.raises(UnavailableError) as error:
                await ask
            assert error.value.retry_after == 7.0
        await site.heal()
        assert await answered(lambda: known.first_many(["id", "new"])) == [False, True]
        assert await answered(lambda: unknown.first("new")) is True


# LocalLRU


@pytest.mark.parametrize("fault", ["killed", "frozen"])
async def test_ids_of_an_outage_come_home(fault: str) -> None:
    """Though the form that they were remembered by may not be relied on any more."""
    async with site_of(fault) as site:
        ours, theirs = await site.gate(), await site.gate()
        here, there = ledger_of(ours.dedup), ledger_of(theirs.dedup)
        assert await here.first_many(["told", "forgotten", "both"]) == [True] * 3
        assert await there.first("theirs") is True
        assert await here.first("theirs") is False
        site.strike()
        assert await here.first_many(["told", "theirs", "new", "newer"]) == [False, False, True, True]
        assert await here.first("new") is False
        assert await here.forget("forgotten") is True
        assert await here.forget("both") is True
        assert await here.first("both", owner="me") is True
        assert [await here.seen(each) for each in ("told", "forgotten", "new")] == [True, False, True]
        assert any(event.verb == "first" and event.answered for event in ours.of(Degraded))
        known = ours.policy.ids.ledgers[here.store_key]
        known.terms.until_ms, known.reread_at = 0, 1 << 60  # half a minute has gone
        await site.come_home(ours, theirs)
        asked = ["told", "theirs", "new", "newer", "both", "forgotten"]
        assert await there.first_many(asked) == [False] * 5 + [True]
        assert await here.first("both", owner="me") is True
        assert ours.of(Conflict) == ours.of(Unreplayed) == []
        assert sum(event.adopted for event in ours.of(Replayed)) == 3


@pytest.mark.parametrize("opened", ["before", "in the outage"])
async def test_of_two_processes_that_told_an_id_one_hears(opened: str) -> None:
    """Also where each founded the ledger with a secret of its own: the ids find their places by the store's."""
    async with site_of("cut off") as site:
        first, last = await site.gate(), await site.gate()
        gates, ledgers = (first, last), [ledger_of(each.dedup) for each in (first, last)]
        if opened == "before":
            for ledger in ledgers:
                await ledger.seen("the ledger is founded")
        site.strike()
        for number, ledger in enumerate(ledgers):
            assert await ledger.first_many(["order:7", f"only:{number}"]) == [True, True]
        for each, proxy in zip(gates, site.proxies, strict=True):
            proxy.forward()
            await each.came_home()
        assert first.of(Conflict) == []
        told = last.of(Conflict)
        assert [(event.namespace, event.key, event.kept) for event in told] == [
            ("shop", "orders/order:7", "theirs")
        ]
        for ledger in ledgers:
            assert await ledger.first_many(["order:7", "only:0", "only:1"]) == [False] * 3


async def test_ids_of_a_ledger_that_the_store_lost_come_home() -> None:
    """Another process has founded it anew, with another secret."""
    async with site_of("cut off") as site:
        ours, theirs = await site.gate(), await site.gate()
        here = ledger_of(ours.dedup)
        assert await here.first("old") is True
        site.strike()
        assert await here.first_many(["new", "newer"]) == [True, True]
        with site.server.client() as raw:
            raw.flushall()
        site.proxies[1].forward()
        there = ledger_of(theirs.dedup)
        assert await answered(lambda: there.seen("theirs founds it")) is False
        await theirs.came_home()
        site.proxies[0].forward()
        await ours.came_home()
        assert await there.first_many(["new", "newer", "old"]) == [False, False, True]
        assert await here.first("old") is False


async def test_an_id_is_answered_locally_until_it_is_home() -> None:
    async with site_of("cut off") as site:
        ours = await site.gate()
        here = ledger_of(ours.dedup)
        assert await here.first("of the store") is True
        site.strike()
        await ours.noticed()
        assert await here.first("new") is True
        site.proxies[0].follow(lambda name: Fate.CUT if name in ("first", "ledger") else Fate.PASS)
        await wait_until(lambda: ours.dedup.breaker == "closed", description="claims are answered")
        assert await here.first("new") is False
        assert ours.policy.lines
        site.proxies[0].forward()
        await ours.came_home()
        assert await here.first("new") is False


async def test_the_journal_of_ids_is_bounded() -> None:
    """A full policy refuses; of a list it then remembers nothing."""
    async with site_of("killed") as site:
        ours: Gate = await site.gate(maxsize=100, max_bytes=60_000)
        here = ledger_of(ours.dedup)
        assert await here.first_many(range(1000)) == [True] * 1000
        assert len(ours.policy.records.ledgers) <= 101
        site.strike()
        with pytest.raises(UnavailableError, match="full"):
            await here.first_many([f"new {number}" for number in range(200)])
        assert ours.policy.lines == 0 == ours.policy.records.reserved
        assert await here.first_many([f"new {number}" for number in range(20)]) == [True] * 20
        forgettings = [here.forget(f"unknown {number}") for number in range(200)]
        answers = await asyncio.gather(*forgettings, return_exceptions=True)
        assert isinstance(answers[-1], UnavailableError)
