"""A primary that restarted empty lost claims that its replicas had confirmed, and nothing said so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastdedup import Dedup, UnavailableError
from fastdedup.events import Event, PrimaryRestarted
from fastdedup.stores.redis.reconnect import Reconnector, process_of

from ..servers import RedisServer
from ..topologies import HOST, ClusterGroup, Member, Pair, SentinelGroup, until

WaitUntil = Callable[..., Any]
TIMEOUT = 1.0


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    try:
        yield pair.start()
    finally:
        pair.stop()


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer()
    try:
        yield server.start()
    finally:
        server.stop()


class Gate:
    """A gate, and the restarts that it has reported."""

    def __init__(self, url: str, **options: Any) -> None:
        self.restarts: list[PrimaryRestarted] = []
        self.dedup = Dedup(url, namespace="t", on_event=self._on_event, **{"timeout": TIMEOUT, **options})

    async def __aenter__(self) -> Gate:
        await self.dedup.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.dedup.aclose()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, PrimaryRestarted):
            self.restarts.append(event)

    async def answers(self, key: str = "another") -> bool:
        """True once the store answers a claim."""
        try:
            await self.dedup.claim(key)
        except UnavailableError:
            return False
        return True


def restart_empty(member: Member) -> None:
    member.kill()
    member.spawn()
    until(member.up, "it is up again")


async def test_a_primary_that_restarted_empty_is_reported(pair: Pair, wait_until: WaitUntil) -> None:
    """Each claim was confirmed by the replica, which then copied the empty primary: all are lost, none is marked."""
    async with Gate(pair.url, replicas=1, timeout=5.0) as gate:  # two seconds of it for the replica
        claims = [await gate.dedup.claim(f"key-{number}") for number in range(20)]
        assert all(claim.confirmed for claim in claims)
        restart_empty(pair.primary)
        await wait_until(gate.answers, description="the primary answers again")
        again = [await gate.dedup.claim(f"key-{number}") for number in range(20)]
        assert all(claim.acquired for claim in again), "the restarted primary has forgotten every claim"
        assert gate.restarts == [PrimaryRestarted(f"Redis at {HOST}:{pair.primary.port}")]


async def test_a_restart_is_reported_without_replicas_too(server: RedisServer, wait_until: WaitUntil) -> None:
    async with Gate(server.url) as gate:
        assert await gate.answers()
        for restarts in (1, 2):
            server.kill()
            server.start()
            await wait_until(gate.answers, description="the server answers again")
            assert gate.restarts == [PrimaryRestarted(f"Redis at {server.socket}")] * restarts


async def test_a_lost_connection_is_no_restart(server: RedisServer, wait_until: WaitUntil) -> None:
    """The server's process is the same as before."""
    async with Gate(server.url) as gate:
        assert await gate.answers()
        with server.client() as raw:
            opened = raw.info("stats")["total_connections_received"]
            raw.client_kill_filter(_type="normal", skipme=True)
        await wait_until(gate.answers, description="the server answers over a new connection")
        with server.client() as raw:
            assert raw.info("stats")["total_connections_received"] >= opened + 2
        assert gate.restarts == []


async def test_sentinel_reports_a_restart_but_no_failover(wait_until: WaitUntil) -> None:
    """Another address is another server: a failover is not a restart."""
    group = SentinelGroup()
    try:
        group.start()
        async with Gate(group.url) as gate:
            assert await gate.answers()
            before = group.primary()
            before.kill()
            until(lambda: group.primary() is not before, "another server is the primary")
            await wait_until(gate.answers, description="the new primary answers")
            assert gate.restarts == []
            for sentinel in group.sentinels:
                sentinel.ask("SENTINEL", "SET", group.SERVICE, "down-after-milliseconds", 60_000)
            restart_empty(group.primary())
            await wait_until(gate.answers, description="the restarted primary answers")
            [restart] = gate.restarts
            assert restart.store.startswith(f"Redis '{group.SERVICE}' of the sentinels at ")
    finally:
        group.stop()


async def test_a_cluster_names_the_node_that_restarted(wait_until: WaitUntil) -> None:
    group = ClusterGroup(replicas=0)
    try:
        group.start()
        async with Gate(group.url) as gate:
            keys = [f"key-{number}" for number in range(60)]
            assert all([await gate.answers(key) for key in keys])
            node = group.primaries()[0]
            restart_empty(node)

            async def all_answer() -> bool:
                return all([await gate.answers(key) for key in keys])

            await wait_until(all_answer, description="all nodes answer again")
            assert gate.restarts == [PrimaryRestarted(f"Redis at {HOST}:{node.port}")]
    finally:
        group.stop()


class Opened:
    """As much of a connection as a `Reconnector` needs."""

    usable = True
    on_unusable = None

    def __init__(self, process: tuple[str, str] | None) -> None:
        self.process = process


async def test_only_the_last_server_is_compared() -> None:
    """A server that restarted as a replica, and is the primary again, has copied the primary in between."""
    processes = [("a", "1"), ("b", "1"), ("a", "2"), None, ("a", "2"), ("a", "3")]
    opened = iter(processes)
    seen: list[tuple[str, str] | None] = []

    async def connect(on_push: object) -> Any:
        seen.append(next(opened))
        return Opened(seen[-1])

    restarts: list[int] = []
    reconnector = Reconnector(connect, lambda: restarts.append(len(seen)))
    for _ in processes:
        await reconnector.connected()
        reconnector.connection = None
    assert restarts == [len(processes)]


@pytest.mark.parametrize("info", [b"redis_version:7.0.15\r\n", ConnectionError("no INFO"), None])
def test_a_server_that_tells_no_run_id_has_no_process(info: Any) -> None:
    """Then no restart can be noticed, and none is reported."""
    assert process_of(info, "here") is None
