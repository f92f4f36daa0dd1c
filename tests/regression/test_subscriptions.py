"""Waiters whose subscription is lost, refused or moved are told all the same, and a line says why."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from fastdedup import Claim, Dedup
from fastdedup.core import waiting
from fastdedup.stores.redis.cluster.slots import slot_of
from fastdedup.stores.redis.errors import FORBIDDEN

from ..fixtures import fixture_of
from ..servers import RedisServer
from ..sidecar.running import Sidecar as SidecarProcess
from ..sidecars import Sidecar
from ..topologies import ClusterGroup, Member, running, until
from ..waiting import wait_until

# Waiters whose subscription was lost, and could not be made again, slept until their owners' leases ended.
# Commands went on well. A waiter that began later slept as well, and no line was logged.


USER = ("on", ">pw", "~*", "&*", "+@all")
SOON = 10.0
"""Seconds: many times the pause between two looks, and a sixth of the leases and waits."""


class Site:
    """A store whose servers can take the subscriptions away and keep all commands.

    Args:
        url: of the owners, whose rights stay; the waiters have a login of their own.
        servers: all that hold keys.
    """

    def __init__(self, url: str, servers: list[Any]) -> None:
        self.owners_url = url
        self.url = url.replace("://", "://app:pw@")
        self._servers = servers

    def ask(self, *command: Any) -> list[Any]:
        """Ask all servers."""
        answers = []
        for server in self._servers:
            with server.client() as raw:
                answers.append(raw.execute_command(*command))
        return answers

    def revoke(self, rule: str) -> None:
        self.ask("ACL", "SETUSER", "app", rule)
        self.ask("CLIENT", "KILL", "TYPE", "pubsub")

    def allow(self) -> None:
        self.ask("ACL", "SETUSER", "app", *USER)

    def has_subscribers(self) -> bool:
        """The servers have a subscription to news of freed keys."""
        return any(count for _, count in self.ask("PUBSUB", "NUMSUB", "fastdedup:settled"))


@pytest.fixture(scope="module", params=["single", "behind a sidecar", "sentinel", "cluster"])
def running_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    in_sidecar = request.param == "behind a sidecar"
    with ExitStack() as stack:
        site = Site(*stack.enter_context(running("single" if in_sidecar else request.param)))
        if in_sidecar:
            site.allow()
            site.url = stack.enter_context(Sidecar(site.url)).url
        yield site


@pytest.fixture
def site(running_site: Site) -> Site:
    running_site.allow()
    return running_site


async def waiter_of(gate: Dedup, key: str) -> asyncio.Task[Claim]:
    """Return a task that waits for a key."""

    async def waits() -> Claim:
        return await gate.claim(key, owner="another", wait=60.0, lease=60.0)

    wakeups = gate.gate.connection.wakeups
    before = len(wakeups.waiting)
    task = asyncio.create_task(waits())
    await wait_until(lambda: len(wakeups.waiting) > before, description="it waits")
    return task


@pytest.mark.parametrize("rule", ["-subscribe", "resetchannels"])
async def test_waiters_look_while_nothing_is_subscribed(
    rule: str, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Waiters that began before and those that began later; one line says so."""
    async with Dedup(site.owners_url, namespace=rule) as owners, Dedup(site.url, namespace=rule) as gate:
        first, later = await owners.claim("first", lease=60.0), await owners.claim("later", lease=60.0)
        before = await waiter_of(gate, "first")
        await wait_until(site.has_subscribers, description="it is subscribed")
        site.revoke(rule)
        await wait_until(lambda: not site.has_subscribers(), description="the subscription is lost")
        after = await waiter_of(gate, "later")
        await wait_until(lambda: "tells of no freed keys" in caplog.text, description="a line says so")
        await first.complete("one")
        await later.complete("two")
        async with asyncio.timeout(SOON):
            assert [(await each).result for each in (before, after)] == ["one", "two"]
    lines = [each for each in caplog.records if "tells of no freed keys" in each.message]
    assert len(lines) == 1
    assert lines[0].levelno == logging.WARNING


async def test_waiters_stop_looking_once_they_are_subscribed_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then they are told again."""
    monkeypatch.setattr(waiting, "_DEAF_PAUSE", 0.05)
    looks = 0
    look = waiting.look

    async def counted(*args: Any) -> Any:
        nonlocal looks
        looks += 1
        return await look(*args)

    monkeypatch.setattr(waiting, "look", counted)

    async def rests() -> bool:
        before = looks
        await asyncio.wait([waiter], timeout=1.0)
        return looks == before

    async with Dedup(site.owners_url, namespace="t") as owners, Dedup(site.url, namespace="t") as gate:
        held = await owners.claim("k", lease=60.0)
        waiter = await waiter_of(gate, "k")
        await wait_until(site.has_subscribers, description="it is subscribed")
        site.revoke("-subscribe")
        before = looks
        await wait_until(lambda: looks > before + 5, description="it looks again and again")
        site.allow()
        await wait_until(site.has_subscribers, description="it is subscribed again", deadline=30.0)
        await wait_until(rests, description="it looks no more", deadline=30.0)
        await held.complete("told")
        async with asyncio.timeout(SOON):
            assert (await waiter).result == "told"


async def test_waiters_look_while_no_other_connection_is_accepted(own_redis: RedisServer) -> None:
    """`maxclients` is reached: the open connections of commands go on, and a subscription cannot be made."""
    async with Dedup(own_redis.url, namespace="t") as owners, Dedup(own_redis.url, namespace="t") as gate:
        held = await owners.claim("k", lease=60.0)
        waiter = await waiter_of(gate, "k")
        with own_redis.client() as raw:
            await wait_until(
                lambda: raw.pubsub_numsub("fastdedup:settled")[0][1], description="it is subscribed"
            )
            raw.config_set("maxclients", 1)
            raw.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            await held.complete("found")
            async with asyncio.timeout(SOON):
                assert (await waiter).result == "found"


# A waiter that may not subscribe logged the rights that a user needs without SUBSCRIBE, the missing one.
# Behind a sidecar its line said that the store does not answer, though it did, and the sidecar's log said
# nothing.


LINE = "tells of no freed keys, so waiters look"


@pytest.fixture
def refusing(server: RedisServer) -> Iterator[str]:
    """The URL of a login that may do all but subscribe."""
    with server.client() as raw:
        raw.execute_command("ACL", "SETUSER", "app", *USER, "-subscribe")
        yield server.url.replace("://", "://app:pw@")
        raw.execute_command("ACL", "DELUSER", "app")


async def line_of(url: str, key: str, caplog: Any, server: Any) -> str:
    """Let a waiter wait until the log says that it is told of nothing; return that line."""
    async with Dedup(server.url, namespace="t") as owners, Dedup(url, namespace="t") as gate:
        held = await owners.claim(key, lease=60.0)
        waiter = await waiter_of(gate, key)
        await wait_until(lambda: LINE in caplog.text, description="a line says so")
        await held.complete("done")
        assert (await waiter).result == "done"
    return next(each.getMessage() for each in caplog.records if LINE in each.getMessage())


async def test_the_line_names_the_missing_right(
    server: RedisServer, refusing: str, caplog: pytest.LogCaptureFixture
) -> None:
    line = await line_of(refusing, "direct", caplog, server)
    assert FORBIDDEN in line
    assert "SUBSCRIBE on the channel fastdedup:settled" in line


async def test_behind_a_sidecar_its_log_names_it(
    server: RedisServer, refusing: str, caplog: pytest.LogCaptureFixture
) -> None:
    with SidecarProcess("--url", refusing, "--allow-stores") as sidecar:
        line = await line_of(f"sidecar://{sidecar.path}", "behind", caplog, server)
        assert "its store tells it of no freed keys at present; the sidecar's log says why" in line
        assert "does not answer" not in line
        await wait_until(lambda: "no freed keys" in sidecar.log, description="the sidecar says why")
        assert "SUBSCRIBE on the channel fastdedup:settled" in sidecar.log


# Waiters heard nothing after the node of their subscription had left the Cluster, until their owners'
# leases ended. The connection stays, and the node goes on answering. But what other nodes publish does not
# reach it any more.


IN_TIME = 3.0
"""Seconds: to see that the node has left, and to subscribe elsewhere. The leases are ten times as long."""


leaving_cluster = fixture_of(ClusterGroup, replicas=0)


def subscribed(group: ClusterGroup) -> list[Member]:
    """Return the servers with a subscription."""
    return [member for member in group.members if b"sub=1" in member.ask("CLIENT", "LIST", "TYPE", "pubsub")]


def key_of(group: ClusterGroup, member: Member) -> str:
    """Return a key that a node holds."""
    return next(
        key for key in map(str, range(1000)) if group.owner(slot_of(b"t:=%b" % key.encode())) is member
    )


class Waiting:
    """A claim that waits for a key, and whose gate listens at `node`; another node holds the key."""

    def __init__(self, group: ClusterGroup, gate: Dedup) -> None:
        self._group = group
        self._gate = gate

    async def begin(self) -> None:
        """Subscribe by a first wait, find out where, then wait for another node's key."""
        await self._gate.claim("first")
        await self._gate.claim("first", owner="another", wait=0.1)
        (self.node,) = subscribed(self._group)
        self.others = [member for member in self._group.members if member is not self.node]
        key = key_of(self._group, self.others[0])
        self.claim = await self._gate.claim(key)
        self.waiter: asyncio.Task[Claim] = asyncio.create_task(self._waited(key))
        wakeups = self._gate.gate.connection.wakeups
        await wait_until(lambda: wakeups.waiting, description="it waits")

    async def _waited(self, key: str) -> Claim:
        return await self._gate.claim(key, owner="another", wait=60.0)

    async def hears(self) -> None:
        """The owner settles, and the waiter is told."""
        await self.claim.complete("news")
        async with asyncio.timeout(IN_TIME):
            assert (await self.waiter).result == "news"


def empty(group: ClusterGroup, node: Member, to: Member) -> None:
    """Give all slots of a node, which hold no keys, to another node; the rest learn it, as that has a newer epoch."""
    name = group.id_of(to)
    slots = next(span for span, owner in group.spans() if owner is node)
    to.ask("CLUSTER", "BUMPEPOCH")
    with to.client() as raw, raw.pipeline(transaction=False) as pipeline:
        for slot in slots:
            pipeline.execute_command("CLUSTER", "SETSLOT", slot, "NODE", name)
        pipeline.execute()
    until(
        lambda: all(node not in group.layout(member).values() for member in group.members),
        "all know that it has no slot",
    )


def forget(group: ClusterGroup, node: Member) -> None:
    """Let all others forget a node: they send it nothing any more."""
    name = group.id_of(node)
    for member in group.members:
        if member is not node:
            member.ask("CLUSTER", "FORGET", name)


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "forgotten only"])
async def test_waiters_hear_when_the_node_of_their_subscription_leaves(
    reset: bool, leaving_cluster: ClusterGroup
) -> None:
    """Its slots move away, then the others forget it: what `redis-cli --cluster del-node` does."""
    async with Dedup(leaving_cluster.url, namespace="t") as gate:
        waiting = Waiting(leaving_cluster, gate)
        await waiting.begin()
        node = waiting.node
        await gate.forget("first")
        await asyncio.to_thread(empty, leaving_cluster, node, waiting.others[0])
        await asyncio.to_thread(forget, leaving_cluster, node)
        if reset:
            node.ask("CLUSTER", "RESET", "SOFT")
        await waiting.hears()
        await wait_until(lambda: subscribed(leaving_cluster) != [node], description="it listens elsewhere")


async def test_waiters_hear_when_the_node_of_their_subscription_is_cut_off(
    leaving_cluster: ClusterGroup,
) -> None:
    """It knows the others no more, and does not take their messages. It keeps its slots, in every layout."""
    async with Dedup(leaving_cluster.url, namespace="t") as gate:
        waiting = Waiting(leaving_cluster, gate)
        await waiting.begin()
        for name in [leaving_cluster.id_of(member) for member in waiting.others]:
            waiting.node.ask("CLUSTER", "FORGET", name)
        await waiting.hears()


async def test_a_subscription_stays_while_its_node_is_well(leaving_cluster: ClusterGroup) -> None:
    """The node is looked after each second."""
    async with Dedup(leaving_cluster.url, namespace="t") as gate:
        waiting = Waiting(leaving_cluster, gate)
        await waiting.begin()
        store: Any = gate.gate.connection.store
        looks: list[bool] = []
        look = store.topology.is_cut_off

        async def looked(address: Any) -> bool:
            looks.append(await look(address))
            return looks[-1]

        store.topology.is_cut_off = looked
        connection = store.listener.connection
        await wait_until(lambda: len(looks) == 2, description="it was looked after twice")
        assert looks == [False, False]
        assert store.listener.connection is connection
        await waiting.hears()
