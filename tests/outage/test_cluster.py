"""A Cluster whose slots move and whose nodes fail: only the keys concerned notice, and none is won twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from fastdedup import Batching, ConfigError, Dedup, Outcome, UnavailableError
from fastdedup.events import BatchedBySlot, BreakerOpened
from fastdedup.stores.redis import ClusterStore
from fastdedup.stores.redis.cluster.slots import slot_of

from ..fixtures import fixture_of
from ..servers import RedisServer
from ..topologies import HOST, ClusterGroup, Member, refuse_undeclared_keys, until
from ..waiting import wait_until
from .load import TIMEOUT, Load, gates

group = fixture_of(ClusterGroup, scope="module")


@pytest.fixture(params=["whole", "by slot"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How batches go to a node: in one call, or as where the servers refuse undeclared keys."""
    if request.param == "by slot":
        refuse_undeclared_keys(monkeypatch)
    return str(request.param)


@pytest.fixture
def cluster(group: ClusterGroup) -> Iterator[ClusterGroup]:
    yield group
    group.heal()


def holder(group: ClusterGroup, key: str) -> Member:
    return group.owner(slot_of(b"t:=" + key.encode()))


def keys_of(group: ClusterGroup, member: Member, name: str, count: int) -> list[str]:
    slots = [span for span, owner in group.spans() if owner is member]
    found: list[str] = []
    number = 0
    while len(found) < count:
        key = f"{name}-{number}"
        number += 1
        slot = slot_of(b"t:=" + key.encode())
        if any(slot in span for span in slots):
            found.append(key)
    return found


def calls_of(member: Member) -> int:
    with member.client() as raw:
        stats: Any = raw.info("commandstats")
    return int(stats.get("cmdstat_evalsha", {"calls": 0})["calls"])


async def attempt(gate: Dedup, key: str) -> str:
    try:
        return (await gate.claim(key)).outcome.value
    except UnavailableError:
        return "unavailable"


async def test_how_batches_go_is_said(cluster: ClusterGroup, way: str) -> None:
    events: list[Any] = []
    async with gates(cluster.url, 1, on_event=events.append) as (gate,):
        assert gate.batching is (Batching.WHOLE if way == "whole" else Batching.BY_SLOT)
    told = sorted(event.store for event in events if isinstance(event, BatchedBySlot))
    nodes = sorted(f"Redis at 127.0.0.1:{member.port}" for member in cluster.primaries())
    assert told == ([] if way == "whole" else nodes), "each node once"


async def test_a_batch_costs_a_node_one_command(cluster: ClusterGroup) -> None:
    """Whatever the slots of its keys."""
    keys = [f"counted-{number}" for number in range(200)]
    async with gates(cluster.url, 1, timeout=5.0) as (gate,):
        await gate.claim_many(["warm-1", "warm-2", "warm-3", "warm-4", "warm-5", "warm-6"])
        before = sum(map(calls_of, cluster.primaries()))
        assert all(claim.acquired for claim in await gate.claim_many(keys))
        assert sum(map(calls_of, cluster.primaries())) - before <= 12, "four batches a node at most"


@pytest.mark.no_cover
async def test_a_slot_moves_under_load_and_nobody_notices(cluster: ClusterGroup, way: str) -> None:
    """MOVED and ASK are followed, keys that are half here and half there too; no error, no second winner."""
    slot = slot_of(b"{moving}")
    source = cluster.owner(slot)
    target = next(member for member in cluster.primaries() if member is not source)
    before = [cluster.errors(member) for member in (source, target)]
    async with gates(cluster.url, timeout=5.0, known_duplicates=0) as opened:
        async with Load(opened, lambda number: f"{{moving}}-{number % 300}") as load:

            def progress() -> None:
                goal = load.answered + 40
                until(lambda: load.answered >= goal, "claims are answered between two steps")

            await asyncio.to_thread(progress)
            await asyncio.to_thread(cluster.migrate_slot, slot, target, meanwhile=progress)
        assert load.doubled == []
        assert load.errors == {}
        assert len(load.winners) == 300
    seen = [cluster.errors(member) for member in (source, target)]
    assert seen[0]["ASK"] > before[0]["ASK"]
    assert seen[0]["MOVED"] > before[0]["MOVED"]


async def test_the_nonces_of_a_dense_ledger_move_with_its_ids(cluster: ClusterGroup, way: str) -> None:
    """While they are half here and half there, the call that has remembered the ids may fail, but gets no False."""
    async with gates(cluster.url, 1, timeout=5.0) as (gate,):
        ledger = gate.ledger("offsets", window=3600.0, capacity=10_000, dense=True)
        mine = [*range(200)]
        assert all(await ledger.first_many(mine, owner="me"))
        assert ledger.view is not None
        bucket = ledger.view.addresses.find(b"0")[0]
        slot, loop = slot_of(bucket), asyncio.get_running_loop()
        source = cluster.owner(slot)
        target = next(member for member in cluster.primaries() if member is not source)
        parts = iter([bucket.decode()])
        answers: list[Any] = []

        async def ask() -> None:
            for some in (mine[:2], [1000 + len(answers)]):
                try:
                    answers.append(await ledger.first_many(some, owner="me"))
                except UnavailableError:
                    answers.append(None)

        def moved() -> None:
            asyncio.run_coroutine_threadsafe(ask(), loop).result(30)
            for part in parts:
                source.ask("MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", part)
                asyncio.run_coroutine_threadsafe(ask(), loop).result(30)

        await asyncio.to_thread(cluster.migrate_slot, slot, target, meanwhile=moved)
        assert None in answers
        assert {found for answer in answers if answer for found in answer} == {True}
        assert all(await ledger.first_many(mine, owner="me"))


async def test_a_frozen_target_of_a_moving_slot_does_not_delay_the_source(cluster: ClusterGroup) -> None:
    """Only the keys that ASK sends there are refused; the source's breaker stays closed."""
    slot = slot_of(b"{stuck}")
    source = cluster.owner(slot)
    target = next(member for member in cluster.primaries() if member is not source)
    others = keys_of(cluster, source, "other", 300)
    events: list[Any] = []
    async with gates(cluster.url, 1, known_duplicates=0, on_event=events.append) as (gate,):
        await gate.claim_many(others[:10])
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(source))
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(target))
        try:
            target.freeze()
            moving = [asyncio.create_task(attempt(gate, f"{{stuck}}-{number}")) for number in range(50)]
            async with Load([gate], lambda number: others[number % 300]) as load:
                stuck = await asyncio.gather(*moving)
            assert set(stuck) == {"unavailable"}
            assert load.errors == {}
            assert load.doubled == []
            opened = [event.store for event in events if isinstance(event, BreakerOpened)]
            assert not [name for name in opened if name.endswith(f":{source.port}")]
        finally:
            target.thaw()
            for member in (source, target):
                member.ask("CLUSTER", "SETSLOT", slot, "STABLE")


async def test_a_primary_dies_and_its_replica_takes_over(cluster: ClusterGroup, way: str) -> None:
    """Others' keys are answered all the while; its own are unavailable until then, and keep their winners."""
    victim = holder(cluster, "key")
    other = next(member for member in cluster.primaries() if member is not victim)
    mine, theirs = keys_of(cluster, victim, "mine", 200), keys_of(cluster, other, "theirs", 2000)
    async with gates(cluster.url) as (gate, second):
        claims = await gate.claim_many(mine)
        await asyncio.gather(*(claim.complete(claim.key) for claim in claims))
        until(lambda: cluster.in_step(victim, 1), "the replica has all of it")
        async with Load([gate, second], lambda number: theirs[number % 2000]) as load:
            victim.kill()
            assert await attempt(gate, mine[0]) == "unavailable"
            assert await attempt(second, mine[1]) == "unavailable"
            goal = load.answered + 100

            async def recovered() -> bool:
                return "unavailable" not in [await attempt(each, mine[0]) for each in (gate, second)]

            await wait_until(recovered, description="the replica is promoted and found")
        assert load.errors == {}, "nobody else is concerned"
        assert load.answered > goal
        assert load.doubled == []
        for each in (gate, second):
            again = await asyncio.gather(*(each.claim(key) for key in mine))
            assert {claim.outcome for claim in again} == {Outcome.SUCCEEDED}, "what was replicated is known"
            assert [claim.result for claim in again] == mine


async def test_a_frozen_node_makes_only_its_own_keys_wait(cluster: ClusterGroup) -> None:
    """Neither does it delay the others' answers."""
    victim, *others = cluster.primaries()
    own = keys_of(cluster, victim, "own", 50)
    rest = [key for other in others for key in keys_of(cluster, other, "rest", 200)]
    async with gates(cluster.url, 1, timeout=1.0) as (gate,):
        await gate.claim_many(own[:10] + rest[:10])
        victim.freeze()
        frozen = [asyncio.create_task(attempt(gate, key)) for key in own]
        answers = await asyncio.gather(*(attempt(gate, key) for key in rest))
        assert not any(task.done() for task in frozen), "nobody waited for the frozen one"
        assert set(answers) == {"acquired", "in_progress"}
        assert set(await asyncio.gather(*frozen)) == {"unavailable"}
        victim.thaw()

        async def back() -> bool:
            return await attempt(gate, own[-1]) != "unavailable"

        await wait_until(back, description="its keys are answered again")


async def test_a_primary_that_wakes_up_after_it_was_replaced_wins_nothing(cluster: ClusterGroup) -> None:
    """Its replica was promoted meanwhile; what both would decide is decided by one."""
    victim = cluster.primaries()[0]
    keys = keys_of(cluster, victim, "key", 400)
    slot = slot_of(b"t:=" + keys[0].encode())
    async with gates(cluster.url) as opened, Load(opened, lambda number: keys[number % 400]) as load:
        victim.freeze()
        await wait_until(lambda: cluster.owner(slot) is not victim, description="its replica is promoted")
        answered = load.answered
        await wait_until(lambda: load.answered > answered + 50, description="which is found")
        victim.thaw()
        answered = load.answered
        await wait_until(lambda: load.answered > answered + 50, description="claims go on")
    again = {claim.owner for claims in load.winners.values() for claim in claims}
    assert len(again) >= 1
    lost = [key for key in load.doubled if not load.errors[key]]
    assert lost == []


async def test_a_slot_without_a_node_is_unavailable_and_no_other(cluster: ClusterGroup) -> None:
    """CLUSTERDOWN for one slot is no outage of the others, even in one batch."""
    slot = slot_of(b"{lost}")
    owner = cluster.owner(slot)
    neighbours = keys_of(cluster, owner, "near", 20)
    async with gates(cluster.url, 1) as (gate,):
        owner.ask("CLUSTER", "DELSLOTS", slot)
        try:
            with pytest.raises(UnavailableError, match="cluster is down"):
                await gate.claim("{lost}")
            answers = await asyncio.gather(*(attempt(gate, key) for key in ["{lost}", *neighbours]))
            assert answers == ["unavailable"] + ["acquired"] * 20
        finally:
            owner.ask("CLUSTER", "ADDSLOTS", slot)

        async def back() -> bool:
            return await attempt(gate, "{lost}") == "acquired"

        await wait_until(back, description="the slot has a node again")


async def test_a_waiter_hears_over_whichever_node(cluster: ClusterGroup) -> None:
    """The node that it listens on dies; another one tells it."""
    async with gates(cluster.url, 1) as (gate,):
        store = gate.gate.connection.store
        assert isinstance(store, ClusterStore)
        await gate.claim("warm")
        key = "key"
        claim = await gate.claim(key)
        waiter = asyncio.create_task(gate.claim(key, wait=30.0))
        await wait_until(lambda: gate.gate.connection.wakeups.waiting, description="it waits")
        for member in cluster.members:
            if member is not holder(cluster, key):
                with member.client() as raw:
                    raw.client_kill_filter(_type="pubsub")
        with holder(cluster, key).client() as raw:
            raw.client_kill_filter(_type="pubsub")
        await claim.complete("news")
        assert (await waiter).result == "news"


async def test_opening_while_all_is_down_is_no_error() -> None:
    """The cluster is found as soon as it is there."""
    group = ClusterGroup(replicas=0)
    try:
        async with Dedup(group.url, timeout=TIMEOUT) as gate:
            with pytest.raises(UnavailableError, match="no node is known"):
                await gate.claim("key")
            group.start()

            async def up() -> bool:
                return await attempt(gate, "key") == "acquired"

            await wait_until(up, description="the cluster is found")
    finally:
        group.stop()


async def test_a_single_server_is_no_cluster(redis_server: RedisServer) -> None:
    """Found out at opening, with the way out; and the other way round."""
    group = ClusterGroup(replicas=0)
    single = group.members[0]
    try:
        single.options = ("--save", "")
        single.spawn()
        until(single.up, "it is up")
        with pytest.raises(ConfigError, match="single server, not a Cluster: use redis://"):
            await Dedup(f"redis+cluster://127.0.0.1:{single.port}").open()
    finally:
        group.stop()


async def test_a_node_behind_a_single_servers_url_is_a_mistake(cluster: ClusterGroup) -> None:
    """Found out at opening, too."""
    port = cluster.primaries()[0].port
    with pytest.raises(ConfigError, match=r"use redis\+cluster://"):
        await Dedup(f"redis://127.0.0.1:{port}").open()
