"""An endless stream outlived its client: it held its key, and the server could not stop.

Starlette's StreamingResponse listens for the client's end before it sends, so it began to listen while the response
was still held back, and was never told. Uvicorn drops what is sent to a client that has left, without an error.
"""

# No `from __future__ import annotations` here: FastAPI reads the annotations of handlers made in a function.

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route as Path

from fastdedup import Claim, Dedup
from fastdedup.integrations.asgi import IdempotencyMiddleware, everyone
from fastdedup.integrations.fastapi import Claimed, Idempotency
from fastdedup.integrations.fastapi import everyone as anybody
from fastdedup.integrations.lifespan import ASGIApp

from ..integrations.live import Live, serving

WaitUntil = Callable[..., Awaitable[Any]]


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
    redis_url: str, ticker: Ticker, wait_until: WaitUntil, make: Callable[..., ASGIApp], http: str
) -> None:
    """Its key is free again. The server then stops by itself, when `running` ends."""
    app = make(ticker, Dedup(redis_url, namespace="t", timeout=5.0))
    async with running(app, ticker, http) as live:
        await watch_and_leave(live)
        await wait_until(lambda: ticker.ended, description="the stream has ended", deadline=5.0)
        await wait_until(lambda: live.over == 1, description="the request is over")
        await watch_and_leave(live)
        await wait_until(lambda: live.over == 2, description="the second is over", deadline=5.0)
    assert (ticker.begun, ticker.ended) == (2, 2)


async def test_a_client_that_left_before_the_stream_began_ends_it(
    redis_url: str, ticker: Ticker, wait_until: WaitUntil
) -> None:
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
        await wait_until(lambda: live.over == 1, description="the stream has ended", deadline=5.0)
    assert ticker.begun == ticker.ended


async def test_a_stream_that_polls_for_its_client_is_told(
    redis_url: str, ticker: Ticker, wait_until: WaitUntil
) -> None:
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
        await wait_until(lambda: live.over == 1, description="the stream has ended", deadline=5.0)
    assert (ticker.begun, ticker.ended) == (1, 1)
