"""As `test_given_up_claims.py`, of claims that go through a sidecar or to a Cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest
import redis

from fastdedup import Dedup, UnavailableError
from fastdedup.stores.redis.cluster.slot_table import slot_of

from ..servers import RedisServer
from ..sidecar.conftest import Serve, serve  # noqa: F401 -- a fixture
from ..sidecars import Sidecar
from ..topologies import ClusterGroup

WaitUntil = Callable[..., Any]
SHORT, LONG = 0.15, 5.0
SOON = 1.0
TIMEOUTS = pytest.mark.parametrize(
    ("own", "its"), [(SHORT, LONG), (LONG, SHORT)], ids=["the gate gives up", "the sidecar gives up"]
)


@asynccontextmanager
async def behind_a_sidecar(server: RedisServer, own: float, its: float) -> AsyncIterator[tuple[Dedup, Dedup]]:
    """A gate with one deadline before a sidecar with another, and a gate that nobody cuts off."""
    sidecar = Sidecar(server.url, timeout=its)
    await asyncio.to_thread(sidecar.start)
    try:
        async with (
            Dedup(sidecar.url, namespace="t", timeout=own) as dedup,
            Dedup(server.url, namespace="t", timeout=LONG) as other,
        ):
            await asyncio.gather(dedup.get("warm"), other.get("warm"))
            yield dedup, other
    finally:
        await asyncio.to_thread(sidecar.stop)


async def taken(other: Dedup, wait_until: WaitUntil, key: str) -> None:
    async def acquired() -> bool:
        return (await other.claim(key)).acquired

    await wait_until(acquired, description=f"another caller acquires {key}", deadline=SOON)


@TIMEOUTS
async def test_a_claim_through_a_sidecar_is_undone(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil, own: float, its: float
) -> None:
    async with behind_a_sidecar(redis_server, own, its) as (dedup, other):
        with redis_server.frozen():
            for ask in (dedup.claim("k"), dedup.claim_many(["a", "b"])):
                with pytest.raises(UnavailableError) as info:
                    await ask
                assert info.value.owner
        for key in ("k", "a", "b"):
            await taken(other, wait_until, key)


@TIMEOUTS
async def test_what_its_owner_asked_for_again_is_not_undone_through_a_sidecar(
    redis_url: str, redis_server: RedisServer, wait_until: WaitUntil, own: float, its: float
) -> None:
    async with behind_a_sidecar(redis_server, own, its) as (dedup, other):
        with redis_server.frozen(), pytest.raises(UnavailableError) as info:
            await dedup.claim("k")
        claim = await wait_until(lambda: claimed(dedup, info.value.owner), description="it is claimed")
        # The sidecar has a list of its own. What it has looked at twice, it has done with.
        undo = dedup._namespace.connection.undo
        await wait_until(lambda: not len(undo), description="nothing is left to be undone")
        for key in ("x", "y"):
            with redis_server.frozen(), pytest.raises(UnavailableError):
                await dedup.claim(key)
            await taken(other, wait_until, key)
        assert not (await other.claim("k")).acquired
        await claim.complete("done")


async def claimed(dedup: Dedup, owner: str | None) -> Any:
    with suppress(UnavailableError):
        return await dedup.claim("k", owner=owner)


def frees_soon(server: RedisServer, key: str) -> bool:
    """Ask as another caller until the key is acquired."""

    async def ask() -> bool:
        async with Dedup(server.url, namespace="fastdedup", timeout=LONG) as other:
            loop = asyncio.get_running_loop()
            ends = loop.time() + SOON
            while loop.time() < ends:
                if (await other.claim(key)).acquired:
                    return True
            return False

    return asyncio.run(ask())


def test_a_claim_over_resp_is_undone(redis_url: str, redis_server: RedisServer, serve: Serve) -> None:  # noqa: F811
    sidecar = serve(redis_url, timeout=SHORT)
    with redis.Redis(unix_socket_path=sidecar.path) as client:
        client.execute_command("FD.CLAIM", "warm")
        with redis_server.frozen(), pytest.raises(redis.ResponseError, match="UNAVAILABLE"):
            client.execute_command("FD.CLAIM", "k")
    assert frees_soon(redis_server, "k")


def test_a_claim_over_http_is_undone(redis_url: str, redis_server: RedisServer, serve: Serve) -> None:  # noqa: F811
    with serve(redis_url, timeout=SHORT).http() as http:
        http.post("/v1/claims", json={"key": "warm"})
        with redis_server.frozen():
            for path, body in (
                ("/v1/claims", {"key": "k"}),
                ("/v1/batch", [{"op": "claim", "key": "b"}]),
            ):
                assert "unavailable" in http.post(path, json=body).text
    for key in ("k", "b"):
        assert frees_soon(redis_server, key)


def test_a_client_that_names_its_owner_keeps_the_key(
    redis_url: str,
    redis_server: RedisServer,
    serve: Serve,  # noqa: F811
) -> None:
    with serve(redis_url, timeout=SHORT).http() as http:
        http.post("/v1/claims", json={"key": "warm"})
        with redis_server.frozen():
            assert http.post("/v1/claims", json={"key": "k", "owner": "w1"}).status_code == 503
        assert not frees_soon(redis_server, "k")
        assert http.post("/v1/claims", json={"key": "k", "owner": "w1"}).status_code == 201


@contextmanager
def cluster() -> Iterator[ClusterGroup]:
    group = ClusterGroup()
    try:
        yield group.start()
    finally:
        group.stop()


async def test_a_claim_on_a_cluster_is_undone(wait_until: WaitUntil) -> None:
    """One node hangs, shorter than its replica waits before it takes over."""
    with cluster() as group:
        async with (
            Dedup(group.url, namespace="t", timeout=SHORT) as dedup,
            Dedup(group.url, namespace="t", timeout=LONG) as other,
        ):
            await asyncio.gather(dedup.get("k"), other.get("k"))
            node = group.owner(slot_of(b"t:=k"))
            node.freeze()
            try:
                for ask in (dedup.claim("k"), dedup.claim_many(["k", "b"], wait=0.0)):
                    with pytest.raises(UnavailableError) as info:
                        await ask
                    assert info.value.owner
            finally:
                node.thaw()
            for key in ("k", "b"):
                await taken(other, wait_until, key)
