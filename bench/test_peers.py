"""Tests of the statements about the peers: ``pytest bench/test_peers.py``. A statement that fails is removed.

Each test plays one story on a private redis-server: a reply is lost, or an owner outlives its lease.
"""

import asyncio
import contextlib
import inspect
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import pytest
import uvicorn
from pydantic import BaseModel
from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from bench.server import private_server
from fastdedup import ClaimLostError, Dedup, UnavailableError
from fastdedup.integrations.asgi import IdempotencyMiddleware, everyone


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


# idemkit


class Shop:
    """An endpoint that counts its runs. The first run waits for `resume`."""

    def __init__(self, streams: str = "") -> None:
        self.runs = 0
        self.running = asyncio.Event()
        self.resume = asyncio.Event()
        self.streams = streams
        self.app = Starlette(routes=[Route("/pay", self.pay, methods=["POST"])])

    async def pay(self, request: Request) -> Response:
        self.runs += 1
        self.running.set()
        if self.runs == 1:
            await self.resume.wait()
        if self.streams:
            return StreamingResponse(self.parts(), media_type=self.streams)
        return PlainTextResponse(f"paid {self.runs}")

    async def parts(self) -> AsyncIterator[str]:
        yield "pa"
        await asyncio.sleep(0.05)
        yield "id"


Guard = Callable[[Any, str, float], Any]
Post = Callable[..., Coroutine[Any, Any, httpx.Response]]


def by_idemkit(app: Any, url: str, lease: float) -> Any:
    from idemkit import HttpConfig, IdempotencyMiddleware, RedisBackend

    config = HttpConfig(scope_mode="single_tenant", lease_ttl_seconds=lease, wait_timeout_seconds=0.01)
    return IdempotencyMiddleware(app, backend=RedisBackend.from_url(url), config=config)


def by_ours(app: Any, url: str, lease: float) -> Any:
    dedup = Dedup(url, namespace="shop", lease=lease, ttl=60.0, timeout=5.0)
    return IdempotencyMiddleware(app, dedup, principal=everyone, wait=0.0)


@asynccontextmanager
async def client(app: Any) -> AsyncIterator[Post]:
    """Serve an application with uvicorn, and yield a function that sends the same request each time."""
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/http.sock"
        server = uvicorn.Server(uvicorn.Config(app, uds=place, log_level="critical"))
        serving = asyncio.create_task(server.serve())
        while not server.started:
            assert not serving.done()
            await asyncio.sleep(0.01)
        transport = httpx.AsyncHTTPTransport(uds=place)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop", timeout=20.0) as http:

            async def post(body: Mapping[str, int] = MappingProxyType({"sum": 5})) -> httpx.Response:
                return await http.post("/pay", headers={"Idempotency-Key": "k-1"}, json=dict(body))

            yield post
        server.should_exit = True
        await serving


async def longer_than_its_lease(guard: Guard, url: str) -> tuple[int, list[int]]:
    """Send a request that takes longer than its lease, and retries. Return the handler's runs, and the statuses."""
    shop, lease = Shop(), 0.3
    async with asyncio.timeout(20), client(guard(shop.app, url, lease)) as post:
        began = time.monotonic()
        first = asyncio.create_task(post())
        await shop.running.wait()
        retries = [await post()]
        while time.monotonic() < began + 4 * lease:
            retries.append(await post())
            await asyncio.sleep(lease / 10)
        shop.resume.set()
        retries.append(await first)
    return shop.runs, [each.status_code for each in retries]


def test_idemkit_runs_a_request_again_that_is_longer_than_its_lease(url: str) -> None:
    """Its README says so: the leases of messages and functions are renewed, and not those of HTTP."""
    runs, statuses = asyncio.run(longer_than_its_lease(by_idemkit, url))
    assert runs == 2
    assert statuses[0] == 423  # within its lease
    assert statuses[-1] == 200


def test_ours_runs_a_request_once_that_is_longer_than_its_lease(url: str) -> None:
    runs, statuses = asyncio.run(longer_than_its_lease(by_ours, url))
    assert runs == 1
    assert set(statuses[:-1]) == {409}
    assert statuses[-1] == 200


async def twice(guard: Guard, url: str, media: str) -> tuple[int, list[httpx.Response | httpx.HTTPError]]:
    """Send a request twice, one after the other, whose response comes in parts. Return its runs, and the answers."""
    shop, answers = Shop(media), []
    shop.resume.set()
    async with asyncio.timeout(20), client(guard(shop.app, url, 30.0)) as post:
        for _ in range(2):
            try:
                answers.append(await post())
            except httpx.RemoteProtocolError as error:
                answers.append(error)
    return shop.runs, answers


@pytest.mark.parametrize("media", ["application/json", "text/event-stream"])
def test_idemkit_cuts_a_response_in_parts_short_and_runs_its_request_again(url: str, media: str) -> None:
    """It keeps no such response, and says so in a header. Starlette is told that the client has gone."""
    runs, answers = asyncio.run(twice(by_idemkit, url, media))
    assert runs == 2
    for answer in answers:
        assert isinstance(answer, httpx.RemoteProtocolError)
        assert "without sending complete message body" in str(answer)


@pytest.mark.parametrize(("media", "status"), [("application/json", 200), ("text/event-stream", 409)])
def test_ours_runs_a_request_once_whose_response_is_sent_in_parts(url: str, media: str, status: int) -> None:
    """A response in parts is held back and replayed. A stream of events cannot be held back: a retry is refused."""
    runs, (first, second) = asyncio.run(twice(by_ours, url, media))
    assert isinstance(first, httpx.Response)
    assert isinstance(second, httpx.Response)
    assert (runs, first.status_code, first.text, second.status_code) == (1, 200, "paid", status)
    assert status == 409 or second.text == "paid"


def test_idemkit_keeps_a_key_taken_for_its_lease_after_a_lost_reply(url: str) -> None:
    from idemkit import (
        IdempotencyConflict,
        MethodConfig,
        RedisBackend,
        StorageError,
        StorageUnavailable,
        idempotent,
    )

    class LosesAReply(RedisBackend):
        lost = False

        async def claim(self, *args: Any, **options: Any) -> Any:
            reply = await super().claim(*args, **options)
            if self.lost:
                return reply
            self.lost = True
            raise StorageError("the connection was lost after the command")

    async def story() -> None:
        async with LosesAReply.from_url(url) as backend:
            config = MethodConfig(key_fields=["order"], scope=lambda: "shop", wait_timeout_seconds=0.01)

            @idempotent(backend=backend, config=config)
            async def pay(order: str) -> str:
                raise AssertionError("not reached")

            with pytest.raises(StorageUnavailable):
                await pay("42")
            with pytest.raises(IdempotencyConflict):  # the caller's own claim, which it does not know
                await pay("42")

    run(story)


def test_a_stale_owner_of_idemkit_changes_nothing(url: str) -> None:
    """As well as ours: a claim has a token that the completion must name."""
    from idemkit import RedisBackend

    async def story() -> None:
        async with RedisBackend.from_url(url) as backend:
            stale = await backend.claim("order", "", 1, 0.001)
            await asyncio.sleep(0.01)  # its millisecond is over
            fresh = await backend.claim("order", "", 1, 30.0)
            assert not await backend.complete("order", stale.our_claim_token, 200, {}, b"stale", 60.0)
            assert not await backend.release("order", stale.our_claim_token)
            assert await backend.complete("order", fresh.our_claim_token, 200, {}, b"fresh", 60.0)
            assert (await backend.claim("order", "", 1, 30.0)).record.response_body == b"fresh"

    run(story)


@dataclass(frozen=True)
class Receipt:
    order: str
    cents: int


class Bill(BaseModel):
    order: str
    cents: int


@pytest.mark.parametrize(("codec", "kind"), [("dataclass", Receipt), ("pydantic", Bill)])
def test_a_duplicate_of_idemkit_gets_the_type_that_its_codec_names(url: str, codec: str, kind: type) -> None:
    from idemkit import MethodConfig, RedisBackend, idempotent

    async def story() -> None:
        async with RedisBackend.from_url(url) as backend:
            config = MethodConfig(key_fields=["order"], scope=lambda: "shop", result_codec=codec)

            @idempotent(backend=backend, config=config)
            async def pay(order: str) -> kind:  # type: ignore[valid-type]
                return kind(order=order, cents=500)

            assert [await pay("42"), await pay("42")] == [kind(order="42", cents=500)] * 2

    run(story)


@pytest.mark.parametrize("kind", [Receipt, Bill])
def test_a_duplicate_of_ours_gets_the_type_of_the_annotation(url: str, kind: type) -> None:
    async def story() -> None:
        async with gate(url) as dedup:

            @dedup.once(key=lambda order: order)
            async def pay(order: str) -> kind:  # type: ignore[valid-type]
                return kind(order=order, cents=500)

            assert [await pay("42"), await pay("42")] == [kind(order="42", cents=500)] * 2

    run(story)


def test_idemkit_refuses_while_redis_is_down_as_ours_does() -> None:
    from idemkit import MethodConfig, RedisBackend, StorageUnavailable, idempotent

    nowhere = "unix:///nonexistent/redis.sock"

    async def never(order: str) -> str:
        raise AssertionError("not reached")

    async def story() -> None:
        async with RedisBackend.from_url(nowhere) as backend:
            config = MethodConfig(key_fields=["order"], scope=lambda: "shop")
            with pytest.raises(StorageUnavailable):
                await idempotent(backend=backend, config=config)(never)("42")
        async with gate(nowhere) as dedup:
            with pytest.raises(UnavailableError):
                await dedup.claim("42")

    run(story)


async def another_body(guard: Guard, url: str) -> int:
    """Send a request again with another body, and return the status."""
    shop = Shop()
    shop.resume.set()
    async with asyncio.timeout(20), client(guard(shop.app, url, 30.0)) as post:
        await post()
        return (await post({"sum": 6})).status_code


@pytest.mark.parametrize("guard", [by_idemkit, by_ours])
def test_idemkit_and_ours_refuse_another_request_under_the_same_key(url: str, guard: Guard) -> None:
    assert asyncio.run(another_body(guard, url)) == 422


def test_only_ours_sends_concurrent_claims_together(url: str) -> None:
    from idemkit import RedisBackend

    async def scripts(client: Redis, claims: Callable[[], Awaitable[Any]]) -> int:
        await client.config_resetstat()
        await claims()
        return int((await client.info("commandstats"))["cmdstat_evalsha"]["calls"])

    async def story() -> None:
        async with Redis.from_url(url) as client, RedisBackend.from_url(url) as backend, gate(url) as dedup:
            keys = [f"order:{n}" for n in range(100)]
            await backend.claim("scripts are loaded", "", 1, 30.0)
            await dedup.claim("scripts are loaded")
            theirs = await scripts(client, lambda: gather(backend.claim(key, "", 1, 30.0) for key in keys))
            ours = await scripts(client, lambda: gather(dedup.claim(key) for key in keys))
            assert theirs == 100
            assert ours <= 5

    run(story)


async def gather(each: Iterable[Awaitable[Any]]) -> None:
    await asyncio.gather(*each)


def test_idemkit_is_small_has_four_stores_and_takes_no_transaction_of_the_caller() -> None:
    import idemkit

    files = Path(idemkit.__file__).parent.rglob("*.py")
    assert sum(len(each.read_text().splitlines()) for each in files) < 10_000
    for store in (idemkit.RedisBackend, idemkit.PostgresBackend, idemkit.MongoBackend, idemkit.DynamoBackend):
        wanted = ["self", "effective_key", "fingerprint", "fingerprint_version", "lease_ttl_seconds"]
        assert list(inspect.signature(store.claim).parameters) == wanted
