"""A stream that its client leaves ends, and its key is free."""

# No `from __future__ import annotations` here: FastAPI reads the annotations of handlers made in a function.

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route as Path

from fastdedup import Claim, Dedup
from fastdedup.integrations.asgi import IdempotencyMiddleware, everyone
from fastdedup.integrations.fastapi import Claimed, Idempotency
from fastdedup.integrations.fastapi import everyone as anybody
from fastdedup.integrations.http.lifespan import ASGIApp

from ..fixtures import fixture_of, fixture_with
from ..integrations.live import Call, Live, serving
from ..integrations.server_process import gunicorn, uvicorn
from ..killable import DEADLINE
from ..servers import RedisServer
from ..waiting import wait_until

# An endless stream outlived its client: it held its key, and the server could not stop. Starlette's
# StreamingResponse listens for the client's end before it sends, so it began to listen while the response
# was still held back, and was never told. Uvicorn drops what is sent to a client that has left, without an
# error.


LISTENING = {"version": "3.0", "spec_version": "2.3"}
"""The version of ASGI, uvicorn's, in which Starlette's StreamingResponse listens for its client's end."""


class Ticker:
    """An endless stream of events, and its counts. `stop` ends it where nothing else does: a test can fail."""

    def __init__(self) -> None:
        self.asked = 0
        self.begun = 0
        self.ended = 0
        self.stop = asyncio.Event()
        self.may_begin = asyncio.Event()
        self.may_begin.set()

    async def events(self) -> AsyncIterator[bytes]:
        self.begun += 1
        try:
            while not self.stop.is_set():
                yield b"data: tick\n\n"
                await asyncio.sleep(0.001)
        finally:
            self.ended += 1

    async def response(self, request: Any = None) -> StreamingResponse:
        self.asked += 1
        await self.may_begin.wait()
        return StreamingResponse(self.events(), media_type="text/event-stream")


@pytest.fixture
def ticker() -> Ticker:
    return Ticker()


def behind_middleware(ticker: Ticker, dedup: Dedup, **settings: Any) -> ASGIApp:
    inner = Starlette(routes=[Path("/ticks", ticker.response, methods=["POST"])])
    return IdempotencyMiddleware(inner, dedup, principal=everyone, **settings)


def under_claimed(ticker: Ticker, dedup: Dedup, **settings: Any) -> ASGIApp:
    app = FastAPI()
    Idempotency(app, dedup)

    @app.post("/ticks")
    async def ticks(
        request: Request, claim: Annotated[Claim, Claimed(principal=anybody, **settings)]
    ) -> StreamingResponse:
        return await ticker.response()

    return app


@asynccontextmanager
async def running(app: ASGIApp, ticker: Ticker, http: str = "httptools") -> AsyncIterator[Live]:
    async with serving(app, http) as live:
        try:
            yield live
        finally:
            ticker.stop.set()


async def watch_and_leave(live: Live) -> None:
    wire = await live.connect()
    wire.send("/ticks", "k")
    await wire.reader.readuntil(b"data: tick\n\n")
    wire.leave()


@pytest.mark.parametrize("http", ["httptools", "h11"])
@pytest.mark.parametrize("make", [behind_middleware, under_claimed])
async def test_an_endless_stream_ends_when_its_client_leaves(
    redis_url: str, ticker: Ticker, make: Callable[..., ASGIApp], http: str
) -> None:
    """Its key is free again. The server then stops by itself, when `running` ends."""
    app = make(ticker, Dedup(redis_url, namespace="t", timeout=5.0))
    async with running(app, ticker, http) as live:
        await watch_and_leave(live)
        await wait_until(lambda: ticker.ended, description="the stream has ended")
        await wait_until(lambda: live.over == 1, description="the request is over")
        await watch_and_leave(live)
        await wait_until(lambda: live.over == 2, description="the second is over")
    assert (ticker.begun, ticker.ended) == (2, 2)


async def test_a_client_that_left_before_the_stream_began_ends_it(redis_url: str, ticker: Ticker) -> None:
    """The handler itself goes on to its end, as ever with on_disconnect="finish"."""
    ticker.may_begin.clear()
    app = behind_middleware(ticker, Dedup(redis_url, namespace="t", timeout=5.0))
    async with running(app, ticker) as live:
        wire = await live.connect()
        wire.send("/ticks", "k")
        await wait_until(lambda: ticker.asked, description="the handler has begun")
        wire.leave()
        await wait_until(lambda: live.connections == 0, description="the server knows that the client left")
        assert live.over == 0
        ticker.may_begin.set()
        await wait_until(lambda: live.over == 1, description="the stream has ended")
    assert ticker.begun == ticker.ended


async def test_a_stream_that_polls_for_its_client_is_told(redis_url: str, ticker: Ticker) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        await request.body()
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        ticker.begun += 1
        while not (ticker.stop.is_set() or await request.is_disconnected()):
            await send({"type": "http.response.body", "body": b"data: tick\n\n", "more_body": True})
            await asyncio.sleep(0.001)
        ticker.ended += not ticker.stop.is_set()

    guarded = IdempotencyMiddleware(app, Dedup(redis_url, namespace="t", timeout=5.0), principal=everyone)
    async with running(guarded, ticker) as live:
        await watch_and_leave(live)
        await wait_until(lambda: live.over == 1, description="the stream has ended")
    assert (ticker.begun, ticker.ended) == (1, 1)


# Starlette's BaseHTTPMiddleware, within the gate, ends what its client has cut short as if it were whole. The stream
# counted as processed, and with "cancel" the beginning of another response was kept, and replayed as the whole.


@pytest.mark.parametrize(
    ("kind", "on_disconnect"),
    [("text/event-stream", "finish"), ("text/event-stream", "cancel"), ("text/csv", "cancel")],
)
@pytest.mark.parametrize("compressed", [False, True])
async def test_a_response_that_is_cut_within_middleware_frees_its_key(
    kind: str, on_disconnect: Any, compressed: bool
) -> None:
    """Compression between the two ends the cut response by a piece of its own."""
    begun, stay = asyncio.Event(), asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        yield b"one,"
        begun.set()
        await stay.wait()
        yield b"two"

    async def respond(request: Request) -> StreamingResponse:
        return StreamingResponse(parts(), media_type=kind)

    within = Middleware(BaseHTTPMiddleware, dispatch=lambda request, call_next: call_next(request))
    between = [Middleware(GZipMiddleware, minimum_size=1)] if compressed else []
    app = Starlette(routes=[Path("/", respond, methods=["POST"])], middleware=[*between, within])
    async with Dedup("memory://", namespace="t") as dedup, asyncio.timeout(DEADLINE):
        guarded = IdempotencyMiddleware(app, dedup, principal=everyone, on_disconnect=on_disconnect)
        accepts = ("accept-encoding", "gzip")
        first, again = (
            Call(guarded, "/", ("idempotency-key", "k"), accepts, asgi=LISTENING) for _ in range(2)
        )
        request = first.start()
        await begun.wait()
        first.leave()
        await request
        stay.set()
        await again.start()
    body = gzip.decompress(again.body) if b"content-encoding" in again.headers else again.body
    assert (again.status, body) == (200, b"one,two")


# FastAPI sends what an async handler yields as JSON Lines, `application/jsonl`. Its parts were held back until the
# last one, or until 256 KiB had come: a client of an endless stream waited for ever.


async def test_a_handler_of_fastapi_that_yields_is_a_stream(redis_url: str) -> None:
    pytest.importorskip("fastapi.sse", reason="FastAPI has such handlers since 0.135")
    app, seen = FastAPI(), asyncio.Event()
    Idempotency(app, Dedup(redis_url, namespace="t", timeout=5.0))

    @app.post("/lines")
    async def lines(claim: Annotated[Claim, Claimed(principal=anybody)]) -> AsyncIterator[dict[str, int]]:
        yield {"line": 0}
        await seen.wait()
        yield {"line": 1}

    async with serving(app) as live, asyncio.timeout(DEADLINE):
        wire = await live.connect()
        wire.send("/lines", "k")
        await wire.reader.readuntil(b'{"line":0}\n')
        seen.set()
        await wire.reader.readuntil(b'{"line":1}\n')
        await wire.close()


# A stream whose client hung up counted as processed in WSGI, Flask and Django: its key was refused for a
# day. Under ASGI its key was free, as promised. What is a stream, and what counts although its client has
# left, is one rule.


APP = "tests.integrations.streaming_app"
WSGI = ["/bare", "/flask", "/django/sync"]
ASGI = ["/starlette", "/fastapi", "/django/async"]


redis = fixture_of(RedisServer, scope="module")


wsgi = fixture_with(
    lambda redis: gunicorn(f"{APP}:wsgi", "-k", "gthread", "--threads", "16", FASTDEDUP_URL=redis.url),
    scope="module",
)
asgi = fixture_with(
    lambda redis: uvicorn(f"{APP}:asgi", "--lifespan", "off", FASTDEDUP_URL=redis.url), scope="module"
)


@pytest.fixture
def client(request: pytest.FixtureRequest, app: str) -> httpx.Client:
    return request.getfixturevalue("wsgi" if app in WSGI else "asgi")  # type: ignore[no-any-return]


def begin(client: httpx.Client, path: str) -> None:
    """Send a request, and hang up once its response has begun."""
    with client.stream("POST", path, headers={"Idempotency-Key": path}) as answer:
        assert (answer.status_code, answer.headers["idempotency-stored"]) == (200, "false")
        assert next(answer.iter_raw())


def post(client: httpx.Client, path: str) -> tuple[int, str]:
    """Send a request, and hang up when its response is whole. Return its status, and its body or its problem."""
    answer = client.post(path, headers={"Idempotency-Key": path, "Connection": "close"})
    is_problem = answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["type"].rpartition(":")[2] if is_problem else answer.text


@pytest.mark.parametrize("app", [*WSGI, *ASGI])
def test_a_stream_that_its_client_leaves_runs_again(client: httpx.Client, app: str) -> None:
    begin(client, f"{app}/events")
    assert post(client, f"{app}/events") == (200, "data: 0\n\ndata: 1\n\ndata: 2\n\n")
    assert post(client, f"{app}/events") == (409, "response-not-stored")


@pytest.mark.parametrize("app", [*WSGI, *ASGI])
def test_a_file_that_its_client_leaves_counts(client: httpx.Client, app: str) -> None:
    """Its view has done its work."""
    begin(client, f"{app}/file")
    assert post(client, f"{app}/file") == (409, "response-not-stored")


@pytest.mark.parametrize("app", [*WSGI, *ASGI])
def test_a_response_ends_with_the_last_byte_that_it_tells(client: httpx.Client, app: str) -> None:
    """Its client has the whole, and leaves. A server that waits for nothing else need not read on."""
    assert post(client, f"{app}/told") == (200, '{"n": 1}\n' * 3)
    assert post(client, f"{app}/told") == (409, "response-not-stored")
