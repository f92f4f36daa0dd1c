"""Tests of the statements about the peers: ``pytest bench/test_peers.py``. A statement that fails is removed.

Each test plays one story on a private redis-server: a reply is lost, or an owner outlives its lease.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from bench.server import private_server
from fastdedup import ClaimLostError, Dedup


@pytest.fixture
def url() -> Iterator[str]:
    with private_server() as url:
        yield url


@asynccontextmanager
async def gate(url: str) -> AsyncIterator[Dedup]:
    async with Dedup(url, namespace="shop", lease=1.0, ttl=60.0, timeout=5.0) as gate:
        yield gate


def run(story: Callable[[], Awaitable[Any]]) -> None:
    async def main() -> None:
        await story()

    asyncio.run(main())


def lease_ends(url: str) -> None:
    """End every lease now: a peer's record expires with its lease."""
    with BlockingRedis.from_url(url) as client:
        client.flushdb()


def test_set_nx_calls_the_winner_of_a_lost_reply_a_duplicate(url: str) -> None:
    async def story() -> None:
        async with Redis.from_url(url) as client:
            assert await client.set("order", "v", nx=True, px=30_000)  # this reply never arrives
            assert not await client.set("order", "v", nx=True, px=30_000)  # the same caller asks again

    run(story)


def test_ours_gives_the_winner_of_a_lost_reply_its_claim(url: str) -> None:
    async def story() -> None:
        async with gate(url) as dedup:
            first = await dedup.claim("order", owner="worker-7")
            again = await dedup.claim("order", owner="worker-7")
            assert again.acquired
            assert again.fence == first.fence

    run(story)


@pytest.mark.parametrize("fails", [False, True])
def test_a_stale_owner_of_idempotency_kit_overwrites_or_deletes_the_result(url: str, fails: bool) -> None:
    from idempotency_kit.core.adapters import JsonResultAdapter
    from idempotency_kit.core.services import IdempotencyDomainService
    from idempotency_kit.core.services.aio.coordinator import AsyncIdempotencyCoordinator
    from idempotency_kit.infra.storage.redis.aio import RedisAsyncIdempotencyRepository

    async def story() -> None:
        async with Redis.from_url(url) as client:
            store = RedisAsyncIdempotencyRepository(client, key_prefix="shop:")
            coordinator = AsyncIdempotencyCoordinator(
                store, IdempotencyDomainService(), on_storage_error="raise"
            )

            async def coordinate(action: Callable[[], Awaitable[str]]) -> str:
                return await coordinator.coordinate("order", "k", 60, JsonResultAdapter(), action)

            async def fresh() -> str:
                return "fresh"

            async def stale() -> str:
                lease_ends(url)  # as for a process that was paused for longer than its lease
                assert await coordinate(fresh) == "fresh"
                if fails:
                    raise LookupError
                return "stale"

            async def third() -> str:
                return "third"

            with contextlib.suppress(LookupError):
                await coordinate(stale)
            # The record is deleted, so that a third caller is first again, or it is overwritten.
            assert await coordinate(third) == ("third" if fails else "stale")

    run(story)


@pytest.mark.filterwarnings("ignore:RedisCachePersistenceLayer will be removed")  # its own name for it
@pytest.mark.parametrize("fails", [False, True])
def test_a_stale_owner_of_powertools_overwrites_or_deletes_the_result(url: str, fails: bool) -> None:
    from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig
    from aws_lambda_powertools.utilities.idempotency.exceptions import IdempotencyItemNotFoundError
    from aws_lambda_powertools.utilities.idempotency.persistence.cache import CachePersistenceLayer

    with BlockingRedis.from_url(url, decode_responses=True) as client:

        def owner() -> Any:
            layer = CachePersistenceLayer(client=client)
            layer.configure(IdempotencyConfig(expires_after_seconds=60), key_prefix="shop")
            return layer

        stale, fresh = owner(), owner()
        stale.save_inprogress(data="k", remaining_time_in_millis=1)
        time.sleep(0.01)  # its millisecond is over
        fresh.save_inprogress(data="k", remaining_time_in_millis=30_000)
        fresh.save_success(data="k", result="fresh")
        if fails:
            stale.delete_record(data="k", exception=LookupError())
            with pytest.raises(IdempotencyItemNotFoundError):
                fresh.get_record(data="k")
        else:
            stale.save_success(data="k", result="stale")
            assert fresh.get_record("k").response_json_as_dict() == "stale"


def test_a_stale_owner_of_ours_changes_nothing(url: str) -> None:
    async def story() -> None:
        async with gate(url) as dedup:
            stale = await dedup.claim("order", lease=0.001)
            fresh = await dedup.claim("order", wait=5.0)
            assert fresh.acquired
            await fresh.complete("fresh")
            for settle in (stale.complete("stale"), stale.release()):
                with pytest.raises(ClaimLostError):
                    await settle
            assert (await dedup.claim("order")).result == "fresh"

    run(story)


def test_idempotency_kit_by_default_runs_the_action_unprotected_while_redis_is_down() -> None:
    from idempotency_kit.core.adapters import JsonResultAdapter
    from idempotency_kit.core.services import IdempotencyDomainService
    from idempotency_kit.core.services.aio.coordinator import AsyncIdempotencyCoordinator
    from idempotency_kit.infra.storage.redis.aio import RedisAsyncIdempotencyRepository

    async def story() -> None:
        runs: list[None] = []

        async def action() -> str:
            runs.append(None)
            return "done"

        async with Redis.from_url("unix:///nonexistent/redis.sock") as client:
            store = RedisAsyncIdempotencyRepository(client, key_prefix="shop:")
            coordinator = AsyncIdempotencyCoordinator(store, IdempotencyDomainService())
            for _ in range(2):
                await coordinator.coordinate("order", "k", 60, JsonResultAdapter(), action)
        assert len(runs) == 2

    run(story)
