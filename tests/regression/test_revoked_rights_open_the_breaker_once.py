"""A login that lost rights made the breaker flap: its probe tried another write than claims do, one that was allowed.

It opened and closed 24 times a second, and each time some callers asked the server in vain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from fastdedup import BreakerState, Dedup, UnavailableError
from fastdedup.events import BreakerClosed, BreakerOpened, Event

from ..servers import RedisServer
from ..topologies import ClusterGroup, Pair, SentinelGroup

WaitUntil = Callable[..., Any]
ALL = ("on", ">pw", "~*", "&*", "+@all")
RIGHTS = re.compile(
    r"The user needs `([^`]+)` on\n`<namespace>:\*` and the channel `([^`]+)`; also (.+?), where used",
    re.DOTALL,
)


class Site:
    """Servers with a user whose rights can change while it is connected."""

    def __init__(self, url: str, clients: list[Callable[[], redis.Redis]], **settings: Any) -> None:
        self.url = url.replace("://", "://app:pw@")
        self.settings = settings
        self._clients = clients

    def set(self, *rules: str) -> None:
        for make in self._clients:
            with make() as raw:
                raw.execute_command("ACL", "SETUSER", "app", *rules)

    def refused(self) -> int:
        """How many calls of scripts were refused, or ended in an error."""
        calls = 0
        for make in self._clients:
            with make() as raw:
                stats = raw.info("commandstats").get("cmdstat_evalsha", {})
            calls += stats.get("rejected_calls", 0) + stats.get("failed_calls", 0)
        return calls


@contextmanager
def single() -> Iterator[Site]:
    server = RedisServer().start()
    try:
        yield Site(server.url, [server.client])
    finally:
        server.stop()


@contextmanager
def with_a_replica() -> Iterator[Site]:
    pair = Pair()
    try:
        pair.start()
        yield Site(pair.url, [pair.primary.client], replicas=1)
    finally:
        pair.stop()


@contextmanager
def sentinels() -> Iterator[Site]:
    group = SentinelGroup()
    try:
        group.start()
        yield Site(group.url, [member.client for member in group.data])
    finally:
        group.stop()


@contextmanager
def cluster() -> Iterator[Site]:
    group = ClusterGroup(replicas=0)
    try:
        group.start()
        yield Site(group.url, [member.client for member in group.members])
    finally:
        group.stop()


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with request.param() as site:
        yield site


@pytest.mark.parametrize(
    ("site", "lost"),
    [
        (single, "-evalsha -eval"),
        (single, "-set"),
        (single, "-time"),
        (with_a_replica, "-set"),
        (sentinels, "-evalsha -eval"),
        (cluster, "-set"),
    ],
    indirect=["site"],
)
async def test_the_breaker_stays_open_until_the_rights_are_back(
    site: Site, lost: str, wait_until: WaitUntil
) -> None:
    """Whatever callers do meanwhile; then it closes within a second."""
    events: list[Event] = []
    site.set(*ALL)
    async with Dedup(site.url, namespace="t", timeout=5.0, on_event=events.append, **site.settings) as dedup:
        await dedup.claim(f"before {lost}")
        site.set(*lost.split())

        async def is_refused() -> bool:
            with suppress(UnavailableError):
                await dedup.claim(lost)
            return dedup.breaker is not BreakerState.CLOSED

        await wait_until(is_refused, description="the breaker opens")
        so_far = site.refused()

        async def was_probed() -> bool:
            await is_refused()
            return site.refused() >= so_far + 4

        await wait_until(was_probed, description="some probes are refused")
        told = [type(event) for event in events if isinstance(event, BreakerOpened | BreakerClosed)]
        assert told == [BreakerOpened]
        site.set(*ALL)
        await wait_until(
            lambda: dedup.breaker is BreakerState.CLOSED, description="the rights are back", deadline=2.0
        )
        assert (await dedup.claim(lost)).acquired


async def test_the_rights_of_the_page_are_enough(wait_until: WaitUntil) -> None:
    """To find out that an outage is over, too: nothing else is asked for then."""
    page = (Path(__file__).parents[2] / "docs" / "redis.md").read_text(encoding="utf-8")
    found = RIGHTS.search(page)
    assert found, "the page has another wording"
    commands = [f"+{name.lower()}" for name in found[1].split()]
    server = RedisServer().start()
    try:
        site = Site(server.url, [server.client])
        site.set("on", ">pw", "~shop:*", "resetchannels", f"&{found[2]}", "-@all", *commands, "+select")
        async with Dedup(site.url, namespace="shop", timeout=0.2) as dedup:
            claim = await dedup.claim("key")
            with server.frozen():

                async def is_away() -> bool:
                    with suppress(UnavailableError):
                        await dedup.claim("another")
                    return dedup.breaker is BreakerState.OPEN

                await wait_until(is_away, description="the breaker opens")
            await wait_until(lambda: dedup.breaker is BreakerState.CLOSED, description="Redis answers")
            await claim.complete("done")
            assert (await dedup.claim("key")).result == "done"
    finally:
        server.stop()
