"""Connections to Redis that are given up, cut or refused."""

from __future__ import annotations

import asyncio
import fcntl
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop
from redis.asyncio.connection import AbstractConnection

from fastdedup import BreakerState, Dedup, Outcome, UnavailableError
from fastdedup.events import BreakerClosed, BreakerOpened, Event
from fastdedup.stores.redis.connection import RedisConnection
from fastdedup.stores.redis.reconnect import check_single, dial
from fastdedup.stores.redis.scripts import pack
from fastdedup.stores.redis.url import ServerURL

from ..servers import RedisServer, free_port
from ..topologies import running
from ..waiting import breaker_opens, cancel, wait_until

# What lay in the system's send queue reached the server after its connection was given up, and was
# executed.


SIOCOUTQNSD = 0x894B
"""Linux: how many bytes wait to be sent, because the other side's window is full."""
SIZE = 1024 * 1024
"""Bytes: more than the window of a connection that is new, less than the system keeps for sending."""
TRIES = 20
"""Of commands: now and then the system widens the window of a server that does not read, and takes one whole."""


@pytest.fixture
def tcp() -> Iterator[tuple[RedisServer, str]]:
    port = free_port()
    with RedisServer("--port", str(port)) as server:
        yield server, f"redis://127.0.0.1:{port}/0"


def unsent(connection: RedisConnection) -> int:
    sock = connection._transport.get_extra_info("socket")
    answer = fcntl.ioctl(sock.fileno(), SIOCOUTQNSD, bytes(4))
    return int(struct.unpack("i", answer)[0])


def connections(raw: Any) -> int:
    return sum(client["addr"].startswith("127.0.0.1") for client in raw.client_list())


async def is_cut(server: RedisServer, url: str, raw: Any) -> bool:
    """Give a connection up while the server is frozen; return whether a part of its command was not sent by then."""
    connection = await dial(ServerURL.of(url), 5.0, None, check_single)
    number = connections(raw)
    server.freeze()
    connection.call(pack("SET", "late", b"x" * SIZE, "PX", 60_000), lambda reply: None)
    await wait_until(lambda: connection._transport.get_write_buffer_size() == 0, description="it was sent")
    rest = unsent(connection)
    connection.abort("given up")
    await connection.gone  # the socket is closed a turn later
    server.thaw()
    await wait_until(lambda: connections(raw) < number, description="the server has ended the connection")
    return rest > 0


async def test_a_connection_that_is_given_up_sends_nothing_more(tcp: tuple[RedisServer, str]) -> None:
    """A command, larger than a frozen server's socket takes, is cut off there: so it is never executed."""
    server, url = tcp
    with server.client() as raw:
        for _ in range(TRIES):
            if await is_cut(server, url, raw):
                break
            raw.flushall()
        else:
            pytest.fail("the server's socket took each command whole, so this tests nothing")
        assert raw.dbsize() == 0


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
async def test_a_connection_that_has_ended_can_be_given_up(
    tcp: tuple[RedisServer, str], make_loop: Any
) -> None:
    """The server has closed it meanwhile: its socket is no more."""
    _, url = tcp

    async def give_up_twice() -> None:
        connection = await dial(ServerURL.of(url), 5.0, None, check_single)
        connection.abort("given up")
        await connection.gone
        connection.abort("given up again")

    def in_a_loop() -> None:
        with asyncio.Runner(loop_factory=make_loop) as runner:
            runner.run(give_up_twice())

    await asyncio.to_thread(in_a_loop)


# A connection that is cut off while redis-py shakes hands is an outage, also by uvloop's own error.


CLOSED = "unable to perform operation on <UnixTransport closed=True>; the handler is closed"


async def test_a_claim_is_unavailable(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def cut(connection: Any) -> None:
        raise RuntimeError(CLOSED)

    async with Dedup(redis_url, namespace="shop", timeout=5.0) as direct:
        owner = await direct.claim("key")
        async with Dedup(redis_url, namespace="shop", timeout=5.0) as dedup:
            with monkeypatch.context() as patch:
                patch.setattr(AbstractConnection, "connect", cut)
                # The one that waits subscribes by a connection of its own; without news it looks again.
                assert (await dedup.claim("key", wait=0.2)).outcome is Outcome.IN_PROGRESS
        with monkeypatch.context() as patch:
            patch.setattr(AbstractConnection, "connect", cut)
            with pytest.raises(UnavailableError, match="Redis at"):
                async with Dedup(redis_url, namespace="shop", timeout=0.2) as away:
                    await away.claim("key")
        await owner.release()


# A login that lost rights made the breaker flap: its probe tried another write than claims do, one that was
# allowed. It opened and closed 24 times a second, and each time some callers asked the server in vain.


ALL = ("on", ">pw", "~*", "&*", "+@all")
RIGHTS = re.compile(
    r"The user needs `([^`]+)` on\n`<namespace>:\*` and the channel `([^`]+)`; also (.+?), if used",
    re.DOTALL,
)


class Site:
    """Servers with a user whose rights can change while it is connected."""

    def __init__(self, url: str, servers: list[Any], **settings: Any) -> None:
        self.url = url.replace("://", "://app:pw@")
        self.settings = settings
        self._servers = servers

    def set(self, *rules: str) -> None:
        for server in self._servers:
            with server.client() as raw:
                raw.execute_command("ACL", "SETUSER", "app", *rules)

    def refused(self) -> int:
        """How many calls of scripts were refused, or ended in an error."""
        calls = 0
        for server in self._servers:
            with server.client() as raw:
                stats = raw.info("commandstats").get("cmdstat_evalsha", {})
            calls += stats.get("rejected_calls", 0) + stats.get("failed_calls", 0)
        return calls


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with running(request.param) as (url, servers):
        yield Site(url, servers, replicas=int(request.param == "pair"))


@pytest.mark.parametrize(
    ("site", "lost"),
    [
        ("single", "-evalsha -eval"),
        ("single", "-set"),
        ("single", "-time"),
        ("pair", "-set"),
        ("sentinel", "-evalsha -eval"),
        ("cluster", "-set"),
    ],
    indirect=["site"],
)
async def test_the_breaker_stays_open_until_the_rights_are_back(site: Site, lost: str) -> None:
    """Whatever callers do meanwhile; then it closes within a second."""
    events: list[Event] = []
    site.set(*ALL)
    async with Dedup(site.url, namespace="t", timeout=5.0, on_event=events.append, **site.settings) as dedup:
        await dedup.claim(f"before {lost}")
        site.set(*lost.split())

        await breaker_opens(dedup, lost)
        so_far = site.refused()

        async def was_probed() -> bool:
            with suppress(UnavailableError):
                await dedup.claim(lost)
            return site.refused() >= so_far + 4

        await wait_until(was_probed, description="some probes are refused")
        told = [type(event) for event in events if isinstance(event, BreakerOpened | BreakerClosed)]
        assert told == [BreakerOpened]
        site.set(*ALL)
        await wait_until(lambda: dedup.breaker is BreakerState.CLOSED, description="the rights are back")
        assert (await dedup.claim(lost)).acquired


async def test_the_rights_of_the_page_are_enough(own_redis: RedisServer) -> None:
    """To find out that an outage is over, too: nothing else is asked for then."""
    page = (Path(__file__).parents[2] / "docs" / "redis.md").read_text(encoding="utf-8")
    found = RIGHTS.search(page)
    assert found, "the page has another wording"
    called = {
        command
        for script in (Path(__file__).parents[2] / "lua").glob("*.lua")
        for command in re.findall(r"\b(?:call|put)\('([A-Z]+)'", script.read_text(encoding="utf-8"))
    }
    assert called - {"MEMORY"} <= set(found[1].split()), "a script calls more; MEMORY is optional"
    commands = [f"+{name.lower()}" for name in found[1].split()]
    site = Site(own_redis.url, [own_redis])
    site.set("on", ">pw", "~shop:*", "resetchannels", f"&{found[2]}", "-@all", *commands, "+select")
    async with Dedup(site.url, namespace="shop", timeout=0.2) as dedup:
        claim = await dedup.claim("key")
        with own_redis.frozen():
            await breaker_opens(dedup, "another")
        await wait_until(lambda: dedup.breaker is BreakerState.CLOSED, description="Redis answers")
        await claim.complete("done")
        assert (await dedup.claim("key")).result == "done"


async def test_a_list_that_is_given_up_keeps_the_connection_of_all(own_redis: RedisServer) -> None:
    """The claims of other callers are on it."""

    def connections() -> int:
        with own_redis.client() as raw:
            return int(raw.info()["total_connections_received"])

    async with Dedup(own_redis.url, namespace="shop", timeout=20.0) as dedup:
        await dedup.claim("key")
        before = connections()
        with own_redis.frozen():
            listing = asyncio.create_task(dedup.records())
            for _ in range(10):
                await asyncio.sleep(0)  # it is sent
            await cancel(listing)
        assert (await dedup.claim("another")).acquired
        assert connections() == before + 1, "this test's own"
