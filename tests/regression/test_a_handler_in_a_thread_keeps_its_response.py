"""A `def` handler whose lease ended in an outage was answered 503, ran on in its thread, and a retry ran it again."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import httpx
import litestar
import pytest
from asgiref.wsgi import WsgiToAsgi
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from fastdedup import Claim, Dedup
from fastdedup.events import Event, LeaseLost
from fastdedup.integrations import asgi
from fastdedup.integrations import litestar as for_litestar
from fastdedup.integrations import starlette as for_starlette
from fastdedup.integrations.fastapi import Claimed, Idempotency, OneTimeToken, everyone
from fastdedup.model import BreakerState

from ..servers import RedisServer

KEY = {"idempotency-key": "k"}
LEASE = 0.8
Work = Callable[[Any], str]
"""The handler's work, with the claim; it returns the text of its response."""


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer().start()
    yield server
    server.stop()


def claimed(dedup: Dedup, work: Work) -> Any:
    app = FastAPI()
    Idempotency(app, dedup)

    @app.post("/orders")
    def order(claim: Annotated[Claim, Claimed(principal=everyone)]) -> str:
        return work(claim)

    return app


def one_time_token(dedup: Dedup, work: Work) -> Any:
    app = FastAPI()
    Idempotency(app, dedup)

    @app.post("/orders")
    def order(claim: Annotated[Claim, OneTimeToken(subject=everyone)]) -> str:
        return work(claim)

    return app


def fastapi_middleware(dedup: Dedup, work: Work) -> Any:
    app = FastAPI()
    app.add_middleware(asgi.IdempotencyMiddleware, dedup=dedup, principal=asgi.everyone)

    @app.post("/orders")
    def order(request: Request) -> str:
        return work(asgi.claim_of(request.scope))

    return app


def starlette_middleware(dedup: Dedup, work: Work) -> Any:
    class Orders(HTTPEndpoint):
        def post(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse(work(asgi.claim_of(request.scope)))

    app = Starlette(routes=[Route("/orders", Orders)])
    return asgi.IdempotencyMiddleware(app, dedup, principal=asgi.everyone)


def starlette_function(dedup: Dedup, work: Work) -> Any:
    @for_starlette.idempotent(dedup, principal=for_starlette.everyone)
    def order(request: Request) -> PlainTextResponse:
        return PlainTextResponse(work(for_starlette.claim_of(request.scope)))

    return Starlette(routes=[Route("/orders", order, methods=["POST"])])


def starlette_method(dedup: Dedup, work: Work) -> Any:
    class Orders(HTTPEndpoint):
        @for_starlette.idempotent(dedup, principal=for_starlette.everyone)
        def post(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse(work(for_starlette.claim_of(request.scope)))

    return Starlette(routes=[Route("/orders", Orders)])


def litestar_handler(dedup: Dedup, work: Work) -> Any:
    @for_litestar.idempotent(dedup, principal=for_litestar.everyone)
    @litestar.post("/orders", sync_to_thread=True)
    def order(request: litestar.Request[Any, Any, Any]) -> str:
        return work(for_litestar.claim_of(request.scope))  # type: ignore[arg-type] # a TypedDict of its own

    return litestar.Litestar([order])


APPS = (
    claimed,
    one_time_token,
    fastapi_middleware,
    starlette_middleware,
    starlette_function,
    starlette_method,
    litestar_handler,
)


def wait_for(predicate: Callable[[], bool], description: str) -> None:
    """Wait in the handler's thread."""
    ends = time.monotonic() + 10.0
    while not predicate():
        assert time.monotonic() < ends, f"waited in vain: {description}"
        time.sleep(0.01)


async def posted(app: Any, dedup: Dedup, times: int = 1) -> list[httpx.Response]:
    """Send the same request several times, one after the other."""
    headers = {**KEY, "x-one-time-token": await dedup.tokens.issue()}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://shop.test", timeout=30.0
    ) as client:
        return [await client.post("/orders", headers=headers) for _ in range(times)]


@pytest.mark.parametrize("make", APPS)
async def test_a_handler_in_a_thread_keeps_its_response(server: RedisServer, make: Any) -> None:
    runs = []
    async with Dedup(server.url, timeout=0.3, lease=LEASE) as dedup:

        def work(claim: Any) -> str:
            runs.append(claim)
            server.freeze()
            try:
                wait_for(lambda: claim.lost, "the lease is lost")
            finally:
                server.thaw()
            wait_for(lambda: dedup.breaker is BreakerState.CLOSED, "Redis is back")
            return "done"

        first, again = await posted(make(dedup, work), dedup, 2)
    assert "done" in first.text
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert again.headers["idempotency-replayed"] == "true"
    assert len(runs) == 1


@pytest.mark.parametrize("mounted", [False, True])
async def test_a_wsgi_application_keeps_its_response(server: RedisServer, mounted: bool) -> None:
    """Its adapter for ASGI runs it in a thread, under the middleware itself or mounted somewhere below."""
    runs, lost = [], threading.Event()

    def note(event: Event) -> None:
        if isinstance(event, LeaseLost):
            lost.set()

    async with Dedup(server.url, timeout=0.3, lease=LEASE, on_event=note) as dedup:

        def wsgi(environ: Any, start_response: Any) -> list[bytes]:
            runs.append(environ)
            server.freeze()
            try:
                assert lost.wait(10.0)
            finally:
                server.thaw()
            wait_for(lambda: dedup.breaker is BreakerState.CLOSED, "Redis is back")
            start_response("200 OK", [])
            return [b"done"]

        app: Any = WsgiToAsgi(wsgi)
        if mounted:
            app = Starlette(routes=[Mount("/", app=app)])
        guarded = asgi.IdempotencyMiddleware(app, dedup, principal=asgi.everyone)
        first, again = await posted(guarded, dedup, 2)
    assert (first.status_code, again.content, len(runs)) == (200, b"done", 1)
    assert again.headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize("make", [claimed, starlette_function])
async def test_a_handler_in_a_thread_that_was_overtaken_does_not_answer(
    server: RedisServer, make: Any
) -> None:
    async with Dedup(server.url, lease=LEASE) as dedup:
        loop = asyncio.get_running_loop()

        def work(claim: Any) -> str:
            forgotten = dedup.scoped("http").forget(claim.key)  # as if another owner had it
            asyncio.run_coroutine_threadsafe(forgotten, loop).result(10.0)
            wait_for(lambda: claim.lost, "the lease is lost")
            return "done"

        (lost,) = await posted(make(dedup, work), dedup)
    assert (lost.status_code, lost.json()["type"]) == (409, "urn:fastdedup:problem:claim-lost")


async def test_an_async_handler_beside_it_is_cancelled(server: RedisServer) -> None:
    async with Dedup(server.url, timeout=0.3, lease=LEASE) as dedup:
        app = FastAPI()
        app.add_middleware(asgi.IdempotencyMiddleware, dedup=dedup, principal=asgi.everyone)

        @app.post("/orders")
        async def order() -> None:
            server.freeze()
            await asyncio.Event().wait()

        try:
            (lost,) = await posted(app, dedup)
        finally:
            server.thaw()
    assert lost.status_code == 503


async def test_a_client_that_leaves_does_not_cancel_a_handler_in_a_thread(redis_url: str) -> None:
    working, left = asyncio.Event(), threading.Event()
    runs = []

    async with Dedup(redis_url, namespace="t") as dedup:
        loop = asyncio.get_running_loop()

        def order(request: Request) -> PlainTextResponse:
            runs.append(request)
            loop.call_soon_threadsafe(working.set)
            assert left.wait(10.0)
            return PlainTextResponse("done")

        app = Starlette(routes=[Route("/orders", order, methods=["POST"])])
        guarded = asgi.IdempotencyMiddleware(app, dedup, principal=asgi.everyone, on_disconnect="cancel")
        request = httpx.Request("POST", "http://shop.test/orders", headers=KEY)
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/orders",
            "query_string": b"",
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
        }
        events = [{"type": "http.request", "body": b""}]

        async def receive() -> Any:
            if events:
                return events.pop()
            await working.wait()
            loop.call_soon(left.set)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            raise AssertionError(f"the client has left: {message}")

        await guarded(scope, receive, send)
        (again,) = await posted(guarded, dedup)
    assert (again.text, len(runs)) == ("done", 1)
