"""When things go wrong behind the middleware: Redis down or frozen, leases lost; with ASGI, clients gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route as Path

from fastdedup import Dedup, LocalLRU
from fastdedup.integrations.asgi import IdempotencyMiddleware, claim_of, everyone
from fastdedup.integrations.http.lifespan import ASGIApp
from fastdedup.integrations.prometheus import watch
from fastdedup.model import BreakerState

from ..servers import RedisServer
from ..waiting import cancel, is_renewed, wait_until
from .conftest import MakeShop
from .desk import Desk, at, client, key, problem
from .live import Call
from .middleware_shop import ASGI, FACES, WSGI, Shop, on_redis
from .test_waiting_duplicates import counted

SENT_WITHIN = 3.0
"""Seconds: a response is held back for one at most, and two cores are shared."""
MARKS = {"idempotency-replayed", "idempotency-degraded", "idempotency-stored"}


@pytest.fixture
def make_own(face: str, own_redis: RedisServer, desk: Desk) -> Callable[..., Shop]:
    """Makes the application on a Redis of the test's own."""
    return lambda gate=(), **settings: Shop(
        face, own_redis.url, desk, gate={"timeout": 1.0, **dict(gate)}, **settings
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
async def test_a_redis_that_comes_later_is_found(make_own: MakeShop, own_redis: RedisServer) -> None:
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


@pytest.mark.usefixtures("short_hold")
async def test_and_is_stored_once_redis_is_back(make_own: MakeShop, own_redis: RedisServer) -> None:
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
        await wait_until(lambda: counted(registry, "complete"), description="it is counted")
        assert counted(registry, "complete") == {"ok": 1}
    assert shop.runs["orders"] == 1


@pytest.mark.usefixtures("short_hold")
async def test_a_response_that_was_sent_and_never_stored_is_told_in_the_log(
    make_own: MakeShop, own_redis: RedisServer, caplog: pytest.LogCaptureFixture
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
async def test_the_lease_is_kept_while_the_handler_works(make_shop: MakeShop) -> None:
    async with make_shop(lease=0.2) as shop:
        go_on, first = await shop.held()
        await is_renewed(lambda: shop.dedup.scoped("http").get(shop.claim().key).lease)
        assert not shop.claim().lost
        go_on.set()
        assert ((await first).status_code, marks(await first)) == (201, set())
        assert (await shop.post()).content == (await first).content
        assert shop.runs["orders"] == 1
        assert shop.dedup.breaker is BreakerState.CLOSED


# ASGI alone


def guarded(app: ASGIApp, dedup: Dedup, desk: Desk, **settings: Any) -> ASGIApp:
    return IdempotencyMiddleware(at(desk, app), dedup, **{"principal": everyone, **settings})


# While the handler runs


async def test_a_lease_that_ends_while_the_response_is_being_stored_costs_nobody_the_response(
    starlette_app: ASGIApp, own_redis: RedisServer, desk: Desk
) -> None:
    async with Dedup(own_redis.url, timeout=1.0, lease=2.0) as dedup:
        http = client(guarded(starlette_app, dedup, desk))
        gate = desk.hold()
        first = asyncio.ensure_future(http.post("/orders", headers=key("k")))
        await desk.started.wait()
        own_redis.kill()
        gate.set()
        answer = await first
    assert (answer.status_code, answer.headers["idempotency-stored"]) == (201, "false")
    assert desk.cancelled["orders"] == 0


@pytest.mark.usefixtures("short_hold")
@pytest.mark.parametrize("listening", [False, True])
async def test_nor_does_one_that_is_lost_just_then(own_redis: RedisServer, listening: bool) -> None:
    """The work is done: from then on the store says whose the key is, and nobody is told to stop."""
    told: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        claim = claim_of(scope)
        assert claim is not None
        own_redis.freeze()
        listener = asyncio.ensure_future(receive()) if listening else None
        if listener is not None:
            listener.add_done_callback(told.append)
        asyncio.get_running_loop().call_later(0.2, claim.settlement.lose)
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})
        if listener is not None:
            assert not told
            listener.cancel()

    async with Dedup(own_redis.url, timeout=1.0) as dedup:
        call = Call(IdempotencyMiddleware(app, dedup, principal=everyone), "/", ("idempotency-key", "k"))
        await call.start()
    assert (call.status, call.body) == (201, b"done")
    assert call.headers[b"idempotency-stored"] == b"false"


async def test_a_handler_that_answers_just_after_it_was_told_to_stop_is_left_alone(redis_url: str) -> None:
    """What it does after its response is not cancelled any more; the retry replays."""
    ended = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if asyncio.current_task() is call.task:
            call.leave()
            assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})
        await asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.15)  # beyond the grace
        ended.set()

    async with Dedup(redis_url, namespace="t", timeout=5.0) as dedup:
        middleware = IdempotencyMiddleware(app, dedup, principal=everyone, on_disconnect="cancel")
        call = Call(middleware, "/", ("idempotency-key", "k"))
        await call.start()
        assert ended.is_set()
        again = Call(middleware, "/", ("idempotency-key", "k"))
        await again.start()
    assert (again.body, again.headers[b"idempotency-replayed"]) == (b"done", b"true")


@pytest.mark.usefixtures("short_hold")
async def test_a_background_task_is_not_stopped_by_a_lease_that_ends_after_the_response(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The response was sent unstored; what runs after it has nothing to do with the claim any more."""
    ended = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        own_redis.freeze()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})
        told = "a response was not recorded"
        await wait_until(lambda: told in caplog.text, description="it is told once the lease has ended")
        ended.set()

    async with Dedup(own_redis.url, timeout=1.0, lease=2.0) as dedup:
        call = Call(IdempotencyMiddleware(app, dedup, principal=everyone), "/", ("idempotency-key", "k"))
        await call.start()
    assert ended.is_set()
    assert call.headers[b"idempotency-stored"] == b"false"


# A lost lease


async def test_a_handler_that_swallows_its_cancellation_and_answers_nothing_is_answered_for(
    own_redis: RedisServer,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        own_redis.kill()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    async with Dedup(own_redis.url, timeout=1.0, lease=2.0) as dedup:
        call = Call(IdempotencyMiddleware(app, dedup, principal=everyone), "/", ("idempotency-key", "k"))
        await call.start()
    assert call.status == 503
    assert b"lease-lost" in call.body


# Clients, to the letter


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_server_that_raises_on_sending_to_a_client_that_left_does_not_disturb_the_handler(
    redis_url: str, when: str
) -> None:
    """ASGI 2.4. The response is stored, and background work is done."""
    done = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"first"})
        done.set()

    async with Dedup(redis_url, namespace="t", timeout=5.0) as dedup:
        middleware = IdempotencyMiddleware(app, dedup, principal=everyone)
        call = Call(middleware, "/", ("idempotency-key", "k"))
        call.deaf = True
        if when == "before":
            await call.start()
            assert done.is_set()
        again = Call(middleware, "/", ("idempotency-key", "k"))
        await again.start()
    assert again.body == b"first"
    assert (b"idempotency-replayed" in again.headers) == (when == "before")


async def test_a_request_cancelled_by_the_server_while_its_response_is_stored_is_stored_all_the_same(
    redis_url: str,
) -> None:
    """The effect has happened."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 201, "headers": []})
        asyncio.get_running_loop().call_soon(call.task.cancel)
        await send({"type": "http.response.body", "body": b"first"})

    async with Dedup(redis_url, namespace="t", timeout=5.0) as dedup:
        middleware = IdempotencyMiddleware(app, dedup, principal=everyone, wait=10.0)
        call = Call(middleware, "/", ("idempotency-key", "k"))
        with pytest.raises(asyncio.CancelledError):
            await call.start()
        again = Call(middleware, "/", ("idempotency-key", "k"))
        await again.start()
    assert again.body == b"first"
    assert again.headers[b"idempotency-replayed"] == b"true"


async def test_a_request_cancelled_by_the_server_while_the_handler_runs_is_released(
    app: ASGIApp, redis_url: str, desk: Desk
) -> None:
    async with Dedup(redis_url, namespace="t", timeout=5.0) as dedup:
        middleware = guarded(app, dedup, desk, wait=10.0)
        if "django" not in type(app).__module__:  # which leaves its view running, see the README
            desk.hold()
            call = Call(middleware, "/orders", ("idempotency-key", "k"))
            task = call.start()
            await desk.started.wait()
            await cancel(task)
            desk.gate = None
            again = Call(middleware, "/orders", ("idempotency-key", "k"))
            await again.start()
            assert again.status == 201
            assert (desk.cancelled["orders"], desk.ended["orders"]) == (1, 1)


async def test_an_endless_stream_ends_when_the_client_is_gone() -> None:
    """ASGI 2.4: that sending fails is all that tells its application."""
    runs = 0

    async def ticks() -> AsyncIterator[str]:
        while True:
            yield "data: tick\n\n"
            await asyncio.sleep(0)

    async def endless(request: Any) -> StreamingResponse:
        nonlocal runs
        runs += 1
        return StreamingResponse(ticks(), media_type="text/event-stream")

    async with Dedup("memory://") as dedup:
        inner = Starlette(routes=[Path("/events", endless, methods=["POST"])])
        app = IdempotencyMiddleware(inner, dedup, principal=everyone)
        first = Call(app, "/events", ("idempotency-key", "k"))
        task = first.start()
        await wait_until(lambda: len(first.sent) > 2, description="it streams")
        first.deaf = True
        await asyncio.wait([task])
        assert task.exception() is not None
        again = Call(app, "/events", ("idempotency-key", "k"))
        task = again.start()
        await wait_until(lambda: len(again.sent) > 2, description="the key is free again")
        again.deaf = True
        await asyncio.wait([task])
        assert task.exception() is not None
        assert (again.status, runs) == (200, 2)
