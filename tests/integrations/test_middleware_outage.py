"""Behind `IdempotencyMiddleware` of ASGI and of WSGI, in each framework: Redis down or frozen, a lease taken over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fastdedup import LocalLRU
from fastdedup.integrations.prometheus import watch
from fastdedup.model import BreakerState

from ..servers import RedisServer
from .conftest import MakeShop
from .desk import Desk, problem
from .middleware_shop import ASGI, FACES, WSGI, Shop, on_redis

WaitUntil = Callable[..., Awaitable[Any]]
SENT_WITHIN = 3.0
"""Seconds: a response is held back for one at most, and two cores are shared."""
MARKS = {"idempotency-replayed", "idempotency-degraded", "idempotency-stored"}


@pytest.fixture
def make_own(face: str, own_redis: RedisServer, desk: Desk) -> Callable[..., Shop]:
    """Makes the application on a Redis of the test's own."""
    return lambda gate=(), **settings: Shop(
        face, own_redis.url, desk, gate={"timeout": 0.25, **dict(gate)}, **settings
    )


def marks(answer: Any) -> set[str]:
    return MARKS & set(answer.headers)


# Before the claim


@pytest.mark.parametrize("fault", ["kill", "freeze"])
async def test_without_redis_a_request_is_503_within_the_deadline_and_nothing_runs(
    make_own: MakeShop, own_redis: RedisServer, fault: str
) -> None:
    async with make_own() as shop:
        await shop.post(sent="before")
        getattr(own_redis, fault)()
        for sent in ("k", "l", "m", "n"):
            begun = time.monotonic()
            answer = await shop.post(sent=sent)
            assert time.monotonic() - begun < SENT_WITHIN
            problem(answer, "unavailable", 503)
            assert int(answer.headers["retry-after"]) >= 1
        assert shop.runs["orders"] == 1
        assert (await shop.post(sent=None)).status_code == 201  # without a key nothing is asked of Redis


@pytest.mark.parametrize("face", ["starlette", *WSGI])
async def test_a_redis_that_comes_later_is_found(
    make_own: MakeShop, own_redis: RedisServer, wait_until: WaitUntil
) -> None:
    own_redis.kill()
    async with make_own() as shop:
        problem(await shop.post(), "unavailable", 503)
        own_redis.start()

        async def is_served() -> bool:
            return (await shop.post()).status_code == 201

        await wait_until(is_served, description="Redis is seen to be back")


async def test_with_local_lru_it_goes_on_and_says_so(make_own: MakeShop, own_redis: RedisServer) -> None:
    own_redis.kill()
    async with make_own({"on_unavailable": LocalLRU()}) as shop:
        first, again = await shop.post(content=b"1"), await shop.post(content=b"1")
        assert marks(first) == {"idempotency-degraded"}
        assert marks(again) == {"idempotency-degraded", "idempotency-replayed"}
        assert again.content == first.content
        assert marks(await shop.post(content=b"2")) == {"idempotency-degraded"}
        assert shop.runs["orders"] == 1
        assert marks(await shop.post("/events")) == {"idempotency-degraded", "idempotency-stored"}


# While the handler runs


@pytest.mark.usefixtures("short_hold")
@pytest.mark.parametrize(
    ("face", "path", "fault"),
    [
        *((face, "/orders", "kill") for face in FACES),
        *((face, "/orders", "freeze") for face in ASGI),
        *((face, path, "kill") for face in ("starlette", *WSGI) for path in ("/events", "/failing")),
    ],
)
async def test_a_response_that_cannot_be_stored_is_sent_and_marked(
    make_own: MakeShop, own_redis: RedisServer, path: str, fault: str
) -> None:
    async with make_own() as shop:
        go_on, first = await shop.held(path)
        getattr(own_redis, fault)()
        begun = time.monotonic()
        go_on.set()
        answer = await first
        assert time.monotonic() - begun < SENT_WITHIN
    status = {"/orders": 201, "/events": 200, "/failing": 500}[path]
    assert (answer.status_code, shop.desk.ended[path[1:]]) == (status, 1)
    assert marks(answer) == ({"idempotency-stored"} if path != "/failing" else set())  # it would be released


def completed(registry: CollectorRegistry) -> dict[str, float]:
    """Completions by their outcomes, where there are some."""
    return {
        sample.labels["outcome"]: sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "fastdedup_operations_total"
        and sample.labels["verb"] == "complete"
        and sample.value
    }


@pytest.mark.usefixtures("short_hold")
async def test_and_is_stored_once_redis_is_back(
    make_own: MakeShop, own_redis: RedisServer, wait_until: WaitUntil
) -> None:
    """And counted once, by what came of it."""
    shop, registry = make_own(), CollectorRegistry()
    watch(shop.dedup, registry=registry)
    async with shop:
        go_on, first = await shop.held()
        own_redis.freeze()
        go_on.set()
        assert (await first).headers["idempotency-stored"] == "false"
        own_redis.thaw()

        async def replayed() -> bool:
            again = await shop.post()
            assert again.status_code in (201, 409, 503)
            return again.content == (await first).content

        await wait_until(replayed, description="the duplicate gets the first response")
        await wait_until(lambda: completed(registry), description="it is counted")
        assert completed(registry) == {"ok": 1}
    assert shop.runs["orders"] == 1


@pytest.mark.usefixtures("short_hold")
async def test_a_response_that_was_sent_and_never_stored_is_told_in_the_log(
    make_own: MakeShop, own_redis: RedisServer, wait_until: WaitUntil, caplog: pytest.LogCaptureFixture
) -> None:
    async with make_own({"lease": 1.0}) as shop:
        go_on, first = await shop.held()
        own_redis.kill()
        go_on.set()
        assert (await first).headers["idempotency-stored"] == "false"
        told = "a response was not recorded"
        await wait_until(lambda: told in caplog.text, description="it is told once the lease has ended")


# Leases


@on_redis
async def test_a_handler_that_ends_after_its_lease_was_taken_over_does_not_answer(
    make_shop: MakeShop,
) -> None:
    """Without renewal nobody stops it; the store tells that it came too late."""
    async with make_shop(renew=False) as shop:
        go_on, first = await shop.held()
        shop.desk.gate = None
        await shop.forget()
        second = await shop.post()
        go_on.set()
        lost = await first
        problem(lost, "claim-lost", 409)
        assert lost.headers["retry-after"] == "1"
        assert (await shop.post()).content == second.content


@on_redis
@pytest.mark.parametrize("face", WSGI)
async def test_the_lease_is_kept_while_the_handler_works(make_shop: MakeShop, wait_until: WaitUntil) -> None:
    async with make_shop(lease=0.2) as shop:
        go_on, first = await shop.held()
        ends = asyncio.get_running_loop().time() + 0.6
        await wait_until(
            lambda: asyncio.get_running_loop().time() > ends, description="three leases are over"
        )
        assert not shop.claim().lost
        go_on.set()
        assert ((await first).status_code, marks(await first)) == (201, set())
        assert (await shop.post()).content == (await first).content
        assert shop.runs["orders"] == 1
        assert shop.dedup.breaker is BreakerState.CLOSED
