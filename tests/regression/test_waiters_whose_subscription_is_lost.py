"""Waiters whose subscription was lost, and could not be made again, slept until their owners' leases ended.

Commands went on well. A waiter that began later slept as well, and no line was logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from fastdedup import Claim, Dedup
from fastdedup.claims import waiting

from ..servers import RedisServer
from ..sidecars import Sidecar
from ..topologies import ClusterGroup, SentinelGroup

WaitUntil = Callable[..., Any]
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


def single(stack: ExitStack) -> Site:
    server = RedisServer().start()
    stack.callback(server.stop)
    return Site(server.url, [server])


def behind_a_sidecar(stack: ExitStack) -> Site:
    site = single(stack)
    site.allow()
    sidecar = Sidecar(site.url)
    stack.callback(sidecar.stop)
    site.url = sidecar.start().url
    return site


def sentinel(stack: ExitStack) -> Site:
    group = SentinelGroup()
    stack.callback(group.stop)
    group.start()
    return Site(group.url, group.data)


def cluster(stack: ExitStack) -> Site:
    group = ClusterGroup(replicas=0)
    stack.callback(group.stop)
    return Site(group.start().url, group.members)


@pytest.fixture(params=[single, behind_a_sidecar, sentinel, cluster], ids=lambda make: make.__name__)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with ExitStack() as stack:
        made = request.param(stack)
        made.allow()
        yield made


async def waiter_of(gate: Dedup, key: str, wait_until: WaitUntil) -> asyncio.Task[Claim]:
    """Return a task that waits for a key."""

    async def waits() -> Claim:
        return await gate.claim(key, owner="another", wait=60.0, lease=60.0)

    wakeups = gate._namespace.connection.wakeups
    before = len(wakeups._count)
    task = asyncio.create_task(waits())
    await wait_until(lambda: len(wakeups._count) > before, description="it waits")
    return task


@pytest.mark.parametrize("rule", ["-subscribe", "resetchannels"])
async def test_waiters_look_while_nothing_is_subscribed(
    rule: str, site: Site, wait_until: WaitUntil, caplog: pytest.LogCaptureFixture
) -> None:
    """Waiters that began before and those that began later; one line says so."""
    async with Dedup(site.owners_url, namespace="t") as owners, Dedup(site.url, namespace="t") as gate:
        first, later = await owners.claim("first", lease=60.0), await owners.claim("later", lease=60.0)
        before = await waiter_of(gate, "first", wait_until)
        await wait_until(site.has_subscribers, description="it is subscribed")
        site.revoke(rule)
        await wait_until(lambda: not site.has_subscribers(), description="the subscription is lost")
        after = await waiter_of(gate, "later", wait_until)
        await wait_until(lambda: "tells of no freed keys" in caplog.text, description="a line says so")
        await first.complete("one")
        await later.complete("two")
        async with asyncio.timeout(SOON):
            assert [(await each).result for each in (before, after)] == ["one", "two"]
    lines = [each for each in caplog.records if "tells of no freed keys" in each.message]
    assert len(lines) == 1
    assert lines[0].levelno == logging.WARNING


async def test_waiters_stop_looking_once_they_are_subscribed_again(
    site: Site, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
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
        waiter = await waiter_of(gate, "k", wait_until)
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


async def test_waiters_look_while_no_other_connection_is_accepted(wait_until: WaitUntil) -> None:
    """`maxclients` is reached: the open connections of commands go on, and a subscription cannot be made."""
    server = RedisServer().start()
    try:
        async with Dedup(server.url, namespace="t") as owners, Dedup(server.url, namespace="t") as gate:
            held = await owners.claim("k", lease=60.0)
            waiter = await waiter_of(gate, "k", wait_until)
            with server.client() as raw:
                await wait_until(
                    lambda: raw.pubsub_numsub("fastdedup:settled")[0][1], description="it is subscribed"
                )
                raw.config_set("maxclients", 1)
                raw.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
                await held.complete("found")
                async with asyncio.timeout(SOON):
                    assert (await waiter).result == "found"
    finally:
        server.stop()
