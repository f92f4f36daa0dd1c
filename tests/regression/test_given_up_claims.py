"""A claim without a reply or a caller leaves its key free soon: directly and behind a sidecar."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import redis

from fastdedup import Claim, Dedup, UnavailableError
from fastdedup import sync as synchronous
from fastdedup.events import Event, UndoOverflow

from ..fixtures import async_fixture
from ..programs import forked
from ..servers import RedisServer
from ..sidecar.conftest import Serve, serve  # noqa: F401 -- a fixture
from ..sidecars import Sidecar
from ..waiting import acquired, wait_until

# A claim that was given up after it was sent held its key for the whole lease, and nobody was told of it.


Ask = Callable[[Dedup, str], Awaitable[Any]]

TIMEOUT = 0.15
SOON = 10.0
"""Seconds in which the key is free again, on a busy machine too: a sixth of the lease that would hold it else."""
A_WHILE = 1.0
"""Seconds after which a key that is still held was not freed."""


class Two:
    """A gate whose Redis hangs now and then, and one that nobody cuts off."""

    def __init__(self, dedup: Dedup, other: Dedup, server: RedisServer) -> None:
        self.dedup = dedup
        self.other = other
        self.server = server
        self.orphans = dedup.gate.connection.orphans

    async def taken(self, key: str) -> None:
        """Another caller gets the key soon."""
        await acquired(self.other, key, deadline=SOON)

    async def loses(self, ask: Ask, key: str) -> UnavailableError:
        """Make a claim while Redis hangs, until it is given up."""
        with self.server.frozen(), pytest.raises(UnavailableError) as info:
            await ask(self.dedup, key)
        return info.value


@asynccontextmanager
async def two(server: RedisServer, **options: Any) -> AsyncIterator[Two]:
    settings = {"namespace": "t", "timeout": TIMEOUT, "lease": 60.0, **options}
    async with Dedup(server.url, **settings) as dedup, Dedup(server.url, namespace="t", timeout=5.0) as other:
        await asyncio.gather(dedup.get("warm"), other.get("warm"))
        yield Two(dedup, other, server)


async def by_claim(dedup: Dedup, key: str) -> Claim:
    return await dedup.claim(key)


async def by_waiting(dedup: Dedup, key: str) -> Claim:
    """Its time is over when its first look is given up, so there is no second look."""
    return await dedup.claim(key, wait=TIMEOUT / 2)


async def by_list(dedup: Dedup, key: str) -> list[Claim]:
    return await dedup.claim_many([key, f"{key}-beside"])


async def by_context(dedup: Dedup, key: str) -> None:
    async with dedup.claim(key, renew=True):
        raise AssertionError("its body must not run")


async def by_lock(dedup: Dedup, key: str) -> None:
    async with dedup.lock(key):
        raise AssertionError("its body must not run")


WAYS: list[Ask] = [by_claim, by_waiting, by_list, by_context, by_lock]


both = async_fixture(lambda redis_server: two(redis_server))


async def test_the_error_of_a_claim_names_its_owner(
    both: Two, redis_url: str, redis_server: RedisServer
) -> None:
    token = await both.other.tokens.issue()
    held = await both.dedup.claim("held")
    machine = both.dedup.machine("m", initial="a", transitions={"a": ("b",), "b": ()})
    ways: list[Ask] = [*WAYS, lambda dedup, _: dedup.tokens.redeem(token), named_once]
    with redis_server.frozen():
        for ask in ways:
            with pytest.raises(UnavailableError) as info:
                await ask(both.dedup, "k")
            assert info.value.owner
        for other in (held.release(), both.dedup.get("k"), both.dedup.forget("k"), both.dedup.tokens.issue(),
                      machine.transition("1", to="b")):  # fmt: skip
            with pytest.raises(UnavailableError) as info:
                await other
            assert info.value.owner is None


async def named_once(dedup: Dedup, key: str) -> None:
    @dedup.once(key=lambda: key)
    async def work() -> None:
        raise AssertionError("it must not run")

    await work()


def test_the_error_of_a_synchronous_claim_names_its_owner(redis_url: str, redis_server: RedisServer) -> None:
    with synchronous.Dedup(redis_url, namespace="t", timeout=TIMEOUT) as dedup:
        dedup.get("warm")
        with redis_server.frozen(), pytest.raises(UnavailableError) as info:
            dedup.claim("k")
        assert info.value.owner is not None
        claim = dedup.claim("k", owner=info.value.owner, wait=30.0)
        assert claim.acquired


async def test_a_forked_child_leaves_what_was_given_up_to_its_parent(redis_url: str, both: Two) -> None:
    """It cannot ask the store, and would try for ever in its copy of the loop."""
    await both.loses(by_claim, "k")
    assert len(both.orphans) == 1
    assert forked(lambda: b"%d" % len(both.orphans)) == b"0"
    await both.taken("k")


# A claim was given up in a freeze, the server executed it afterwards, and its key was held for nobody.


PATIENCE = 0.3
LEASE = 600
"""Seconds: what is not undone stays."""


@asynccontextmanager
async def frozen(server: RedisServer, **options: Any) -> AsyncIterator[Dedup]:
    """A gate that knows its server well, which is frozen now."""
    async with Dedup(server.url, **{"namespace": "t", "timeout": PATIENCE, **options}) as dedup:
        await dedup.claim("warm", lease=LEASE)
        server.freeze()
        yield dedup


async def give_up(dedup: Dedup, *keys: str) -> list[UnavailableError]:
    errors = await asyncio.gather(*(ask(dedup, key) for key in keys), return_exceptions=True)
    assert all(isinstance(error, UnavailableError) for error in errors)
    return errors  # type: ignore[return-value]


async def ask(dedup: Dedup, key: str, **options: Any) -> Claim:
    return await dedup.claim(key, lease=LEASE, **options)


def waiting(dedup: Dedup) -> int:
    return len(dedup.gate.connection.orphans)


def states(server: RedisServer) -> dict[str, str]:
    """Return the state of each record."""
    with server.client() as raw:
        return {key.decode()[3:]: chr(raw.getrange(key, 1, 1)[0]) for key in raw.keys("t:=*")}  # type: ignore[union-attr]


async def undone(server: RedisServer, dedup: Dedup) -> dict[str, str]:
    """Thaw; return the records once nothing is left to be undone."""
    server.thaw()
    await wait_until(lambda: waiting(dedup) == 0, description="all is undone")
    return {key: state for key, state in states(server).items() if key != "warm"}


async def test_closing_undoes_what_is_left(own_redis: RedisServer) -> None:
    async with frozen(
        own_redis, timeout=2.0
    ) as dedup:  # so long closing tries, which a busy machine may need
        await give_up(dedup, *(f"k{n}" for n in range(600)))
        own_redis.thaw()
    assert {state for key, state in states(own_redis).items() if key != "warm"} <= {"R"}


async def test_closing_does_not_wait_for_a_frozen_server(own_redis: RedisServer) -> None:
    async with frozen(own_redis) as dedup:
        await give_up(dedup, *(f"k{n}" for n in range(600)))
        started = time.monotonic()
    assert time.monotonic() - started < 10 * PATIENCE


async def test_the_oldest_is_dropped_with_an_event(own_redis: RedisServer) -> None:
    events: list[Event] = []
    async with frozen(own_redis, on_event=events.append) as dedup:
        dedup.gate.connection.orphans.most = 2
        await give_up(dedup, "a", "b", "c")
        assert [event.key for event in events if isinstance(event, UndoOverflow)] == ["a"]
        assert await undone(own_redis, dedup) == {"a": "P", "b": "R", "c": "R"}


# The same of claims that go through a sidecar.


SHORT, LONG = 0.15, 5.0
TIMEOUTS = pytest.mark.parametrize(
    ("own", "its"), [(SHORT, 10 * SHORT), (LONG, SHORT)], ids=["the gate gives up", "the sidecar gives up"]
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


@TIMEOUTS
async def test_a_claim_through_a_sidecar_is_undone(
    redis_url: str, redis_server: RedisServer, own: float, its: float
) -> None:
    async with behind_a_sidecar(redis_server, own, its) as (dedup, other):
        with redis_server.frozen():
            for ask in (dedup.claim("k"), dedup.claim_many(["a", "b"])):
                with pytest.raises(UnavailableError) as info:
                    await ask
                assert info.value.owner
        for key in ("k", "a", "b"):
            await acquired(other, key, deadline=SOON)


@TIMEOUTS
async def test_what_its_owner_asked_for_again_is_not_undone_through_a_sidecar(
    redis_url: str, redis_server: RedisServer, own: float, its: float
) -> None:
    async with behind_a_sidecar(redis_server, own, its) as (dedup, other):
        with redis_server.frozen(), pytest.raises(UnavailableError) as info:
            await dedup.claim("k")
        claim = await wait_until(lambda: claimed(dedup, info.value.owner), description="it is claimed")
        # The sidecar has a list of its own. What it has looked at twice, it has done with.
        undo = dedup.gate.connection.orphans
        await wait_until(lambda: not len(undo), description="nothing is left to be undone")
        for key in ("x", "y"):
            with redis_server.frozen(), pytest.raises(UnavailableError):
                await dedup.claim(key)
            await acquired(other, key, deadline=SOON)
        assert not (await other.claim("k")).acquired
        await claim.complete("done")


async def claimed(dedup: Dedup, owner: str | None) -> Any:
    with suppress(UnavailableError):
        return await dedup.claim("k", owner=owner)


def frees(server: RedisServer, key: str, *, within: float = SOON) -> bool:
    """Ask as another caller until the key is acquired."""

    async def ask() -> bool:
        async with Dedup(server.url, namespace="fastdedup", timeout=LONG) as other:
            loop = asyncio.get_running_loop()
            ends = loop.time() + within
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
    assert frees(redis_server, "k")


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
        assert frees(redis_server, key)


def test_a_client_that_names_its_owner_keeps_the_key(
    redis_url: str,
    redis_server: RedisServer,
    serve: Serve,  # noqa: F811
) -> None:
    with serve(redis_url, timeout=SHORT).http() as http:

        def says_it_again() -> int:
            return http.post("/v1/claims", json={"key": "k", "owner": "w1"}).status_code

        http.post("/v1/claims", json={"key": "warm"})
        with redis_server.frozen():
            assert says_it_again() == 503
        assert not frees(redis_server, "k", within=A_WHILE)
        # A busy machine may need more than SHORT for an answer: the claim is sent again, like by a client.
        asyncio.run(wait_until(lambda: says_it_again() == 201, description="its owner has the key"))
