"""A primary behind Sentinel that fails: the next one is found without reopening, and no key is won twice."""

from __future__ import annotations

import asyncio

import pytest

from fastdedup import ConfigError, Dedup, Outcome, UnavailableError
from fastdedup.kernel.operations import ClaimOp
from fastdedup.kernel.terms import Mode, terms
from fastdedup.kernel.verbs import Verb
from fastdedup.stores.redis import RedisStore

from ..fixtures import fixture_of
from ..servers import RedisServer
from ..topologies import Member, SentinelGroup, until
from ..waiting import is_answered, wait_until
from .load import Load, gates

running = fixture_of(SentinelGroup, scope="module")


@pytest.fixture
def group(running: SentinelGroup) -> SentinelGroup:
    """The group, well again: nobody waits 9 s until it has recovered from the file's last test."""
    running.heal()
    return running


async def test_a_primary_killed_under_load_is_replaced(group: SentinelGroup) -> None:
    """Unavailable until then, with the same gates afterwards; what was replicated keeps its winner."""
    before = [f"before-{number}" for number in range(300)]
    async with gates(group.url) as opened:
        claims = await opened[0].claim_many(before)
        await asyncio.gather(*(claim.complete(claim.key) for claim in claims))
        victim = group.primary()
        until(lambda: group.in_step(victim, 2), "the replicas have all of it")
        victim.kill()
        async with Load(opened, lambda number: f"key-{number % 500}") as load:
            assert not await is_answered(opened[0].claim("key"))
            assert group.primary() is victim, "not replaced yet"
            await wait_until(lambda: load.answered > 200, description="the next one answers", deadline=60.0)
        until(lambda: group.primary() is not victim, "all sentinels know of it")
        assert load.doubled == []
        assert load.errors
        for gate in opened:
            await wait_until(
                lambda gate=gate: is_answered(gate.claim("key")), description="this gate's breaker closes"
            )
            again = await asyncio.gather(*(gate.claim(key) for key in before))
            assert {claim.outcome for claim in again} == {Outcome.SUCCEEDED}
            assert [claim.result for claim in again] == before


async def test_a_primary_that_comes_back_gets_no_writes(group: SentinelGroup) -> None:
    """It was frozen, is replaced, and wakes up as one that knows of nothing."""
    async with gates(group.url) as opened:
        victim = group.primary()
        async with Load(opened, lambda number: f"key-{number % 500}") as load:
            await wait_until(lambda: load.answered > 100, description="the load is on")
            victim.freeze()
            await wait_until(
                lambda: group.primary() is not victim, description="it is replaced", deadline=60.0
            )
            reached = load.answered
            await wait_until(lambda: load.answered > reached + 100, description="by one that answers")
            victim.thaw()
            reached = load.answered
            await wait_until(lambda: load.answered > reached + 100, description="claims go on")
            await asyncio.to_thread(until, lambda: victim.ask("ROLE")[0] == b"slave", "it is a replica")
        assert [key for key in load.doubled if not load.errors[key]] == []
        with victim.client() as raw, pytest.raises(Exception, match="read only"):
            raw.set("t:=key", "x")


@pytest.mark.parametrize("serves_stale", ["yes", "no"], ids=["READONLY", "MASTERDOWN"])
async def test_a_primary_that_became_a_replica_is_left(own_redis: RedisServer, serves_stale: str) -> None:
    """The connection is dropped, so that the next attempt asks the sentinels."""
    store = RedisStore(own_redis.url, timeout=5.0)
    try:
        await store.open()
        op = ClaimOp(b"key", terms(Mode.CLAIM, 1000, 1000, False), b"\x0a" + b"o" * 10, None)
        await store.execute(Verb.CLAIM, [op])
        await store.probe(b"probe")
        with own_redis.client() as raw:
            await wait_until(
                lambda: raw.keys("*") == [b"key"], description="what a probe claims is free again"
            )
            raw.config_set("replica-serve-stale-data", serves_stale)
            raw.replicaof("127.0.0.1", 1)
            for attempt in (store.probe(b"probe"), store.execute(Verb.CLAIM, [op])):
                connections = raw.info("stats")["total_connections_received"]
                with pytest.raises(UnavailableError, match="replica"):
                    await attempt
                await wait_until(
                    lambda: store.reconnector.connection is None, description="the connection is dropped"
                )
                await store.reconnector.connected()
                assert raw.info("stats")["total_connections_received"] > connections
            raw.replicaof("NO", "ONE")
        await store.probe(b"probe")
    finally:
        await store.aclose()


async def test_sentinels_that_are_down_or_frozen_delay_nothing(group: SentinelGroup) -> None:
    """All are asked at once; the first good answer counts."""
    dead, frozen, _ = group.sentinels
    dead.kill()
    frozen.freeze()
    async with asyncio.timeout(0.9), gates(group.url, 1, timeout=1.0) as (gate,):
        assert (await gate.claim("with one sentinel left")).acquired


async def test_without_any_sentinel_it_is_an_outage(group: SentinelGroup) -> None:
    """Opening is no error; the primary is found as soon as one of them answers."""
    for sentinel in group.sentinels:
        sentinel.kill()
    async with gates(group.url, 1) as (gate,):
        with pytest.raises(UnavailableError, match="Sentinel at"):
            await gate.claim("key")
        for sentinel in group.sentinels:
            sentinel.spawn()
        await wait_until(lambda: is_answered(gate.claim("key")), description="the primary is found")


async def test_a_wrong_service_name_is_a_mistake(group: SentinelGroup) -> None:
    """Told at opening, with what to look at; also while one of the sentinels is down."""
    group.sentinels[0].kill()
    url = group.url.replace(f"/{group.SERVICE}", "/nonsense")
    with pytest.raises(ConfigError, match=r"'nonsense'.*check its name"):
        await Dedup(url).open()


async def test_a_sentinel_behind_a_single_servers_url_is_a_mistake(group: SentinelGroup) -> None:
    with pytest.raises(ConfigError, match=r"use redis\+sentinel://"):
        await Dedup(f"redis://127.0.0.1:{group.sentinels[0].port}").open()


async def test_a_server_in_the_place_of_a_sentinel_is_a_mistake(group: SentinelGroup) -> None:
    port = group.primary().port
    with pytest.raises(ConfigError, match="does not know the command SENTINEL"):
        await Dedup(f"redis+sentinel://127.0.0.1:{port}/main").open()


async def test_a_login_that_may_only_ask_for_the_address_is_enough(group: SentinelGroup) -> None:
    """It gets neither the epoch nor the announcements: a failover is found as it was before there were those."""
    for sentinel in group.sentinels:
        rules = ("on", ">few", "-@all", "+auth", "+sentinel|get-master-addr-by-name")
        sentinel.ask("ACL", "SETUSER", "few", *rules)
    url = f"{group.url}?sentinel_username=few&sentinel_password=few"
    async with gates(url, 1) as (gate,):
        assert (await gate.claim("before")).acquired
        await asyncio.to_thread(group.failover)
        primary = group.primary()

        async def arrives() -> bool:
            return await is_answered(gate.claim("after")) and bool(
                await asyncio.to_thread(exists, primary, "t:=after")
            )

        await wait_until(arrives, description="the next primary answers")


def exists(member: Member, key: str) -> bool:
    with member.client() as raw:
        return bool(raw.exists(key))


async def test_logins_of_sentinels_and_servers_are_apart() -> None:
    """`sentinel_password=` is for the sentinels, the one before the hosts for the servers."""
    with SentinelGroup(password="data-s3cret", watch_password="watch-s3cret") as group:
        places = group.url.removeprefix("redis+sentinel://")
        url = f"redis+sentinel://:data-s3cret@{places}?sentinel_password=watch-s3cret"
        async with gates(url, 1) as (gate,):
            assert (await gate.claim("key")).acquired
        for wrong, names in (
            (url.replace("=watch-s3cret", "=nonsense"), "Sentinel at .*sentinel_password="),
            (url.replace(":data-s3cret@", ":nonsense@"), "Redis at .*password"),
            (f"redis+sentinel://{places}", "sentinel_password="),
        ):
            with pytest.raises(ConfigError, match=names) as caught:
                await Dedup(wrong).open()
            assert "s3cret" not in str(caught.value)
            assert "nonsense" not in str(caught.value)
