"""A primary that was frozen, deposed or switched is left, and each incident ends in the events as it began."""

from __future__ import annotations

import asyncio
import itertools
from asyncio import to_thread
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from fastdedup import Dedup
from fastdedup.events import BreakerClosed, BreakerOpened, Event, PrimarySwitched
from fastdedup.model import BreakerState
from fastdedup.stores.redis.cluster.slots import slot_of

from ..fixtures import fixture_of
from ..heard import HeardGate
from ..servers import RedisServer
from ..topologies import HOST, ClusterGroup, Member, SentinelGroup, free_ports, until
from ..waiting import breaker_opens, is_answered, wait_until

# A frozen primary that was failed over was never left: its keys were refused until it thawed. The probe's
# deadline cancelled it, and a cancelled probe did not ask for the layout.


class Slow(ClusterGroup):
    """Takes longer to fail over than a breaker takes to open."""

    NODE_TIMEOUT = 2000


cluster = fixture_of(Slow)


async def test_a_frozen_primary_is_left_after_its_failover(cluster: ClusterGroup) -> None:
    """Its replica serves the keys, and nobody thaws it. The breaker is open by then: only probes go to the node."""
    slot = slot_of(b"{k}")
    frozen = cluster.owner(slot)
    async with Dedup(cluster.url, namespace="t", timeout=0.5) as gate:

        async def is_refused() -> bool:
            return (
                not await is_answered(gate.claim("{k}", owner="me"))
                and gate.breaker is not BreakerState.CLOSED
            )

        await wait_until(lambda: is_answered(gate.claim("{k}", owner="me")), description="it is asked")
        frozen.freeze()
        await wait_until(is_refused, description="the breaker of the node opens")
        await wait_until(lambda: cluster.owner(slot) is not frozen, description="its replica is promoted")
        await wait_until(
            lambda: is_answered(gate.claim("{k}", owner="me")),
            description="the replica is asked",
        )


# Fault 13.7: a client with an open connection stayed with a primary that the sentinels had deposed. The old
# primary is cut off from the sentinels and the replicas, and the client is not: 464 of 464 keys were owned
# twice. The sentinels' and the replicas' user is refused on it, and the client has another user.


USER, PASSWORD = "shop", "shop-pass"
EVERYTHING = "~* &* +@all"
LIMIT = 2.0
"""Seconds from the first sentinel's knowledge until the client has left."""


@pytest.fixture(scope="module")
def running() -> Iterator[SentinelGroup]:
    with SentinelGroup() as group:
        for member in group.data:
            member.ask("ACL", "SETUSER", USER, "on", f">{PASSWORD}", *EVERYTHING.split())
        yield group


@pytest.fixture
def group(running: SentinelGroup) -> Iterator[SentinelGroup]:
    yield running
    running.heal()


def client(member: Member) -> redis.Redis:
    """The client's own way to a server."""
    return redis.Redis(host=HOST, port=member.port, username=USER, password=PASSWORD, protocol=2)


@contextmanager
def cut_off(member: Member) -> Iterator[None]:
    """Neither sentinels nor replicas reach a server; clients do."""
    with client(member) as raw:
        raw.execute_command("ACL", "SETUSER", "default", "off")
        raw.execute_command("CLIENT", "KILL", "USER", "default")
        try:
            yield
        finally:
            raw.execute_command("ACL", "SETUSER", "default", "on", "nopass", *EVERYTHING.split())


def named_by(sentinel: Member) -> int:
    """The port of the primary that a sentinel names."""
    return int(sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SentinelGroup.SERVICE)[1])


def promoted(group: SentinelGroup, deposed: Member, *sentinels: Member) -> Member:
    """Wait until one of the sentinels names another primary, and return that."""
    asked = sentinels or tuple(group.sentinels)

    def named() -> int:
        return next((port for port in map(named_by, asked) if port != deposed.port), 0)

    port = until(named, "a sentinel names another primary")
    return next(member for member in group.data if member.port == port)


def url_of(group: SentinelGroup, *first: Member) -> str:
    places = ",".join(f"{HOST}:{member.port}" for member in (*first, *group.sentinels))
    return f"redis+sentinel://{USER}:{PASSWORD}@{places}/{SentinelGroup.SERVICE}"


def gate(url: str) -> Dedup:
    return Dedup(url, namespace="t", timeout=0.5, known_duplicates=0.0)


_numbers = itertools.count()


async def claimed(dedup: Dedup) -> str | None:
    """Claim a new key, and return it; None if no store answered."""
    key = f"arrival-{next(_numbers)}"
    return key if await is_answered(dedup.claim(key)) else None


def has(member: Member, key: str) -> bool:
    with client(member) as raw:
        return bool(raw.exists(f"t:={key}"))


async def arrives(dedup: Dedup, member: Member) -> bool:
    """Claim a new key, and return whether it arrived at this server."""
    key = await claimed(dedup)
    return key is not None and has(member, key)


async def owned_twice(one: Dedup, url: str) -> list[str]:
    """The keys that a gate and one that was opened later both acquire."""
    keys = [f"key-{number}" for number in range(400)]
    async with gate(url) as other:
        first, second = await one.claim_many(keys), await other.claim_many(keys)
    return [mine.key for mine, its in zip(first, second, strict=True) if mine.acquired and its.acquired]


async def test_a_deposed_primary_that_answers_is_left(group: SentinelGroup) -> None:
    """With the waiters' subscription; and no key is owned twice from then on."""
    async with gate(url_of(group)) as dedup:
        deposed = group.primary()
        await wait_until(lambda: arrives(dedup, deposed), description="it is there")
        async with dedup.claim("warm") as held:
            waiting = asyncio.ensure_future(dedup.claim("warm", wait=5.0))  # so there is a subscription
            await wait_until(lambda: subscribed(deposed), description="the gate has subscribed")
            await held.complete("done")
        assert (await waiting).result == "done"
        with cut_off(deposed):
            primary = await asyncio.to_thread(promoted, group, deposed)
            await wait_until(
                lambda: arrives(dedup, primary), description="the client has left", deadline=LIMIT
            )
            assert await owned_twice(dedup, url_of(group)) == []
            with client(deposed) as raw:
                assert raw.info("replication")["role"] == "master", "it answered all the time"
            async with gate(url_of(group)) as other:
                claim = await other.claim("held")
                waiting = asyncio.ensure_future(dedup.claim("held", wait=20.0))
                await wait_until(lambda: subscribed(primary), description="the gate has subscribed there")
                await claim.complete("told")
                async with asyncio.timeout(2.0):
                    assert (await waiting).result == "told"


def subscribed(member: Member) -> bool:
    with client(member) as raw:
        return raw.pubsub_numsub("fastdedup:settled")[0][1] > 0


async def test_a_frozen_sentinel_does_not_make_it_deaf(group: SentinelGroup) -> None:
    """The sentinel whose announcements the client hears is frozen before the failover."""
    async with gate(url_of(group)) as dedup:
        deposed = group.primary()
        await wait_until(lambda: arrives(dedup, deposed), description="it is there")
        heard = await wait_until(lambda: heard_by(group), description="the client hears announcements")
        heard.freeze()
        others = [sentinel for sentinel in group.sentinels if sentinel is not heard]
        with cut_off(deposed):
            primary = await asyncio.to_thread(promoted, group, deposed, *others)
            await wait_until(
                lambda: arrives(dedup, primary), description="the client has left", deadline=LIMIT
            )


def links(sentinel: Member) -> list[dict[str, str]]:
    """A sentinel's connections from clients, but for the one that asks; other sentinels give theirs a name."""
    with sentinel.client() as raw:
        found: list[dict[str, str]] = raw.client_list()
    return [link for link in found if not link["name"] and not link["cmd"].startswith("client")]


def heard_by(group: SentinelGroup) -> Member | None:
    """The sentinel that the client has subscribed to."""
    return next((each for each in group.sentinels if any(link["sub"] == "1" for link in links(each))), None)


@contextmanager
def outdated(folder: Path, primary: Member) -> Iterator[Member]:
    """A sentinel that knows of no other sentinel, and of a primary that it cannot reach."""
    config = f"sentinel monitor {SentinelGroup.SERVICE} {HOST} {primary.port} 2\n"
    sentinel = Member(folder, free_ports(1)[0], sentinel=config).spawn()
    try:
        until(sentinel.up, "it is up")
        yield sentinel
    finally:
        sentinel.stop()


async def test_an_outdated_sentinel_pulls_no_client_back(group: SentinelGroup, tmp_path: Path) -> None:
    """It stands first in the URL, and the old primary answers; also while most of the sentinels are frozen."""
    deposed = group.primary()
    with cut_off(deposed), outdated(tmp_path, deposed) as former:
        primary = await asyncio.to_thread(promoted, group, deposed)
        until(lambda: all(named_by(each) == primary.port for each in group.sentinels), "all know it")
        assert named_by(former) == deposed.port
        for frozen in ([], group.sentinels[1:]):
            for sentinel in frozen:
                sentinel.freeze()
            await stays_at(primary, url_of(group, former))


async def stays_at(primary: Member, url: str) -> None:
    """A client is at this primary, and comes back to it each time that its connections are killed."""
    async with gate(url) as dedup:
        await wait_until(lambda: arrives(dedup, primary), description="it is there")
        for _ in range(10):
            with client(primary) as raw:
                raw.execute_command("CLIENT", "KILL", "USER", USER)
            key = await wait_until(lambda: claimed(dedup), description="a primary answers again")
            assert has(primary, key), "it is the present one"
        assert await owned_twice(dedup, url) == []


async def test_nothing_is_left_at_the_sentinels_after_closing(group: SentinelGroup) -> None:
    async with gate(url_of(group)):
        await wait_until(lambda: heard_by(group), description="the client hears announcements")
        assert all(links(sentinel) for sentinel in group.sentinels)
    await wait_until(lambda: not any(map(links, group.sentinels)), description="no connection is left")


def test_it_watches_again_in_the_next_event_loop(group: SentinelGroup) -> None:
    """A gate is opened again after closing, and where its loop has ended without closing."""
    dedup = Dedup(url_of(group), namespace="t", timeout=0.5)

    async def use(*, close: bool) -> None:
        await dedup.open()
        await wait_until(lambda: heard_by(group), description="the client hears announcements")
        if close:
            await dedup.aclose()

    for close in (True, False, True):
        asyncio.run(use(close=close))
        until(lambda: heard_by(group) is None, "no subscription is left")


# A planned failover forgot keys that a replica had confirmed, and no event told of it.


sentinels = fixture_of(SentinelGroup)


class Gate(HeardGate):
    """A gate, and what it reports of other primaries."""

    @property
    def switches(self) -> list[Event]:
        return self.of(PrimarySwitched)

    @property
    def watches(self) -> Any:
        """The address of the primary that its watch has seen last."""
        store: Any = self.dedup.gate.connection.store
        return store._watch._former


async def test_each_gate_reports_a_planned_failover_once(sentinels: SentinelGroup) -> None:
    """Also a gate that asks nothing meanwhile."""
    gates = [Gate(sentinels.url, namespace="t"), Gate(sentinels.url, namespace="t")]
    async with AsyncExitStack() as stack:
        for gate in gates:
            await stack.enter_async_context(gate.dedup)
        await gates[0].dedup.claim("k")
        await wait_until(lambda: all(gate.watches for gate in gates), description="they watch")
        await to_thread(sentinels.failover)
        await wait_until(lambda: all(gate.switches for gate in gates), description="it is reported")
        await wait_until(
            lambda: is_answered(gates[0].dedup.claim("k")), description="the other primary answers"
        )
        store: Any = gates[0].dedup.gate.connection.store
        assert [gate.switches for gate in gates] == [[PrimarySwitched(store.name)]] * 2


async def test_a_crash_of_the_primary_is_no_switch(sentinels: SentinelGroup) -> None:
    """The breaker tells of it."""
    gate = Gate(sentinels.url, namespace="t")
    async with gate.dedup:
        await wait_until(lambda: gate.watches, description="it watches")
        former = gate.watches
        await to_thread(sentinels.primary().kill)
        await wait_until(lambda: gate.watches != former, description="another is the primary", deadline=60.0)
        await wait_until(lambda: is_answered(gate.dedup.claim("k")), description="it answers")
        assert gate.switches == []


# A node's breaker was open when the node left the Cluster, and no event said that it closed: metrics showed
# it open. Each BreakerOpened is followed by one BreakerClosed of the same node.


TIMEOUT = 0.3


shrinking_cluster = fixture_of(ClusterGroup)


async def test_a_breaker_closes_when_its_node_is_replaced(shrinking_cluster: ClusterGroup) -> None:
    events: list[Event] = []
    victim = shrinking_cluster.owner(slot_of(b"t:=key"))
    until(lambda: shrinking_cluster.in_step(victim, 1), "the replica is in step")
    async with Dedup(shrinking_cluster.url, namespace="t", timeout=TIMEOUT, on_event=events.append) as dedup:
        await dedup.get("key")
        victim.kill()
        await breaker_opens(dedup, "key")
        closed = await wait_until(
            lambda: [event for event in events if isinstance(event, BreakerClosed)],
            description="the breaker of the node that left is closed",
            deadline=60.0,
        )
        assert (await dedup.claim("key", wait=10.0)).acquired
        assert dedup.breaker is BreakerState.CLOSED
        assert str(victim.port) in closed[0].store
        assert closed[0].lasted > 0.0
    assert Counter(event.store for event in events if isinstance(event, BreakerOpened)) == Counter(
        event.store for event in events if isinstance(event, BreakerClosed)
    )


async def test_closing_the_gate_reports_no_closed_breaker() -> None:
    events: list[Event] = []
    with RedisServer() as server:
        async with Dedup(server.url, timeout=TIMEOUT, on_event=events.append) as dedup:
            server.kill()
            await breaker_opens(dedup, "key")
    assert [event for event in events if isinstance(event, BreakerClosed)] == []
