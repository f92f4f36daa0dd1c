"""What is aiohttp's own: its server, its ways to read and to answer. `test_draft.py` has the rules that all share."""

from __future__ import annotations

import asyncio
import gzip
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from fastdedup import ConfigError, Dedup
from fastdedup.integrations.aiohttp import Route, by_header, everyone, setup

from ..servers import RedisServer
from ..sql_pages.pages import Page, names_of

KEY = {"Idempotency-Key": "order-42"}
REPLAYED = "Idempotency-Replayed"
Client = TestClient[web.Request, web.Application]
Serve = Callable[..., AbstractAsyncContextManager[Client]]


class Patient(TestServer):
    """A server that does not cancel a handler whose client leaves, just like aiohttp's own by default."""

    async def _make_runner(self, **options: Any) -> web.AppRunner:
        return web.AppRunner(self.app, **{**options, "handler_cancellation": False})


@pytest.fixture
def serve(redis_url: str) -> Serve:
    @asynccontextmanager
    async def serve(
        handler: Any, url: str = redis_url, outer: Any = (), server: Any = TestServer, **settings: Any
    ) -> AsyncIterator[Client]:
        app = web.Application(middlewares=outer)
        app.router.add_route("*", "/orders", handler)
        setup(app, Dedup(url, namespace="shop", timeout=1.0), **{"principal": everyone, **settings})
        async with TestClient(server(app)) as client:
            yield client

    return serve


@pytest.mark.parametrize("routes", [["/c/{cart}/{item}", "/orders/{number}"], ["/*"]])
async def test_an_encoded_slash_ends_no_segment(redis_url: str, routes: list[str]) -> None:
    """The router reads the encoded path: such a path needs its route's rule, and is one request with no other."""
    runs = itertools.count(1)

    async def handler(request: web.Request) -> web.Response:
        return web.json_response([next(runs), *request.match_info.values()])

    app = web.Application()
    for path in ("/c/{cart}/{item}", "/orders/{number}"):
        app.router.add_post(path, handler)
    setup(app, Dedup(redis_url, namespace="slashes", timeout=1.0), routes=routes, principal=everyone)
    async with TestClient(TestServer(app)) as client:

        async def post(path: str) -> Any:
            response = await client.post(URL(path, encoded=True), headers=KEY)
            return await response.json() if response.status == 200 else response.status

        assert [await post("/c/1%2F2/3") for _ in range(2)] == [[1, "1/2", "3"]] * 2
        assert [await post(f"/orders/a%2{f}b") for f in "Ff"] == [[2, "a/b"]] * 2
        others = [await post("/c/1/2%2F3"), await post("/orders/a%252Fb"), await post("/orders/a%25252Fb")]
    assert others == ([422] * 3 if routes != ["/*"] else [[3, "1", "2/3"], [4, "a%2Fb"], [5, "a%252Fb"]])


async def by_read(request: web.Request) -> bytes:
    return await request.read()


async def by_content(request: web.Request) -> bytes:
    return b"".join([part async for part in request.content.iter_chunked(1000)])


async def by_post(request: web.Request) -> bytes:
    file: Any = (await request.post())["file"]
    return bytes(file.file.read())


async def by_multipart(request: web.Request) -> bytes:
    part: Any = await (await request.multipart()).next()
    return bytes(await part.read())


@pytest.mark.parametrize("size", [0, 5, 400_000])
@pytest.mark.parametrize("read", [by_read, by_content, by_post, by_multipart])
async def test_the_handler_reads_the_body_in_each_way(serve: Serve, read: Any, size: int) -> None:
    """Of any size: beyond some 130 kB aiohttp's own streams stop the reading of their connection."""

    async def order(request: web.Request) -> web.Response:
        return web.Response(body=await read(request))

    async with serve(order) as client:
        data: Any = b"x" * size
        if read in (by_post, by_multipart):
            data = aiohttp.FormData(default_to_multipart=True)
            data.add_field("file", b"x" * size, filename="a.bin")
        assert await (await client.post("/orders", data=data, headers=KEY)).read() == b"x" * size


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("encoding", ["", "gzip"])
async def test_bodies_are_compared_however_they_are_sent(serve: Serve, chunked: bool, encoding: str) -> None:
    async def order(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async def post(client: Client, body: bytes) -> tuple[int, bytes]:
        data: Any = gzip.compress(body, mtime=0) if encoding else body
        if chunked:
            data = pieces(data)
        headers = {**KEY, **({"Content-Encoding": encoding} if encoding else {})}
        answer = await client.post("/orders", data=data, headers=headers)
        return answer.status, await answer.read()

    async with serve(order) as client:
        assert [await post(client, b"tea") for _ in range(2)] == [(200, b"tea")] * 2
        assert (await post(client, b"coffee"))[0] == 422


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 2):
        yield data[at : at + 2]


async def test_a_middleware_outside_may_read_the_body(serve: Serve) -> None:
    @web.middleware
    async def reading(request: web.Request, handler: Any) -> web.StreamResponse:
        assert await request.read()
        return await handler(request)  # type: ignore[no-any-return]

    async def order(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async with serve(order, outer=[reading]) as client:
        assert await (await client.post("/orders", data=b"tea", headers=KEY)).read() == b"tea"
        assert (await client.post("/orders", data=b"coffee", headers=KEY)).status == 422


@pytest.mark.parametrize("most", [2, 100], ids=["a part", "all"])
async def test_a_body_that_was_taken_is_told(
    serve: Serve, most: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Else two bodies under one key would be the same request."""

    @web.middleware
    async def taking(request: web.Request, handler: Any) -> web.StreamResponse:
        assert await request.content.read(most)
        return await handler(request)  # type: ignore[no-any-return]

    async with serve(by_read, outer=[taking]) as client:
        assert (await client.post("/orders", data=b"coffee", headers=KEY)).status == 500
    assert "has taken the request's body" in caplog.text


async def test_a_handler_without_a_response_is_told(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    async def order(request: web.Request) -> None:
        return None

    async with serve(order) as client:
        assert (await client.post("/orders", headers=KEY)).status == 500
    assert "must return a response, got NoneType" in caplog.text


async def test_a_response_that_is_raised_is_kept(serve: Serve) -> None:
    async def order(request: web.Request) -> web.Response:
        response = web.HTTPSeeOther("/thanks")
        response.set_cookie("cart", "7")
        raise response

    async with serve(order) as client:
        answers = [await client.post("/orders", headers=KEY, allow_redirects=False) for _ in range(2)]
    assert [(each.status, each.headers["Location"]) for each in answers] == [(303, "/thanks")] * 2
    assert [REPLAYED in each.headers for each in answers] == [False, True]


@pytest.mark.parametrize("caught", [False, True])
async def test_the_servers_answer_to_an_error_has_no_mark(serve: Serve, caught: bool) -> None:
    """The head of that answer was taken for the one of the handler's own response, sent part by part."""

    @web.middleware
    async def outer(request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            return await handler(request)  # type: ignore[no-any-return]
        except RuntimeError:
            if not caught:
                raise
            return web.Response(status=503)

    async def handler(request: web.Request) -> web.Response:
        raise RuntimeError("boom")

    async with serve(handler, outer=[outer]) as client:
        response = await client.post("/orders", headers=KEY)
    assert (response.status, "Idempotency-Stored" in response.headers) == (503 if caught else 500, False)


async def test_a_reason_phrase_and_a_header_beyond_latin_1_are_replayed(serve: Serve) -> None:
    async def order(request: web.Request) -> web.Response:
        sent = {"status": 202, "reason": "Taken In", "headers": {"X-Shop": "tea ☕"}}
        response = web.json_response({"item": (await request.json())["item"]}, **sent)
        response.set_cookie("cart", "7")
        return response

    async with serve(order) as client:
        answers = [await client.post("/orders", json={"item": "tea"}, headers=KEY) for _ in range(2)]
        for each in answers:
            assert (each.status, each.reason, await each.json()) == (202, "Taken In", {"item": "tea"})
            assert (each.headers["X-Shop"], each.content_length) == ("tea ☕", len(b'{"item": "tea"}'))
            assert each.headers["Content-Type"] == "application/json; charset=utf-8"
    assert [REPLAYED in each.headers for each in answers] == [False, True]
    assert ["Set-Cookie" in each.headers for each in answers] == [True, False]


async def repeated(client: Client) -> aiohttp.ClientResponse:
    """Send the request again until the one before is over."""
    again = await client.post("/orders", headers=KEY)
    while again.status == 409 and REPLAYED not in again.headers:
        again = await client.post("/orders", headers=KEY)
    return again


@pytest.mark.parametrize(("kind", "status"), [("text/csv", 409), ("text/event-stream", 200)])
async def test_a_stream_whose_client_leaves(serve: Serve, kind: str, status: int) -> None:
    """Its work is done, so a retry does not run; a stream of events may be endless, and its retry runs."""
    left, ended = asyncio.Event(), asyncio.Event()

    async def order(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": kind})
        await response.prepare(request)
        await response.write(b"one")
        if left.is_set():
            return response
        try:
            while True:
                await response.write(b"more")
                await asyncio.sleep(0)
        finally:
            ended.set()

    async with serve(order, server=Patient) as client:
        answer = await client.post("/orders", headers=KEY)
        left.set()
        answer.close()
        await ended.wait()
        assert (await repeated(client)).status == status


async def test_an_error_within_a_stream_frees_its_key(serve: Serve) -> None:
    runs = list[int]()

    async def order(request: web.Request) -> web.StreamResponse:
        runs.append(1)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one")
        if len(runs) < 3:
            raise (LookupError, web.HTTPBadGateway)[len(runs) - 1]
        return response

    async with serve(order) as client:
        for _ in range(2):
            (await repeated(client)).close()
        assert await (await repeated(client)).read() == b"one"
    assert len(runs) == 3


async def test_a_lease_that_is_lost_within_a_stream_breaks_it_off(
    serve: Serve, redis_server: RedisServer
) -> None:
    """Else its client would take a part for the whole."""

    async def order(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one")
        await asyncio.Event().wait()
        return response

    async with serve(order, lease=0.3) as client:
        answer = await client.post("/orders", headers=KEY)
        assert answer.status == 200
        with redis_server.client() as redis:
            redis.flushall()
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()


async def test_of_two_guards_around_a_handler_the_outer_one_claims(redis_url: str) -> None:
    async def order(request: web.Request) -> web.Response:
        return web.Response(text="ordered")

    outer, inner = web.Application(), web.Application()
    inner.router.add_post("/orders", order)
    dedup = Dedup(redis_url, namespace="shop", timeout=1.0)
    for app in (outer, inner):
        setup(app, dedup, principal=everyone)
    outer.add_subapp("/shop", inner)
    async with TestClient(TestServer(outer)) as client:
        answers = [await client.post("/shop/orders", headers=KEY) for _ in range(2)]
        assert [await each.text() for each in answers] == ["ordered"] * 2
    assert [REPLAYED in each.headers for each in answers] == [False, True]


async def test_a_gate_that_is_open_stays_open(redis_url: str) -> None:
    async with Dedup(redis_url) as dedup:
        app = web.Application()
        setup(app, dedup, principal=by_header("x-api-key"))
        async with TestClient(TestServer(app)) as client:
            assert (await client.post("/elsewhere")).status == 404
        assert dedup.is_open


@pytest.mark.parametrize(
    "settings", [{"on_disconnect": "cancel"}, {"routes": [Route("/orders", on_disconnect="cancel")]}]
)
def test_a_setting_that_cannot_be_honoured_is_refused(settings: Any) -> None:
    with pytest.raises(ConfigError, match="handler_cancellation=True"):
        setup(web.Application(), Dedup("memory://"), principal=everyone, **settings)
    with pytest.raises(ConfigError, match="dedup"):
        setup(web.Application(), "redis://", principal=everyone)  # type: ignore[arg-type]


async def test_a_client_that_leaves_within_its_body_takes_no_key(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @web.middleware
    async def watching(request: web.Request, handler: Any) -> web.StreamResponse:
        begun.set()
        try:
            return await handler(request)  # type: ignore[no-any-return]
        finally:
            ended.set()

    async def order(request: web.Request) -> web.Response:
        return web.Response(text=(await request.read()).decode())

    async with serve(order, outer=[watching]) as client:
        assert client.port is not None
        _, writer = await asyncio.open_connection(client.host, client.port)
        head = (
            "POST /orders HTTP/1.1\r\nHost: a\r\nIdempotency-Key: order-42\r\nContent-Length: 9\r\n\r\nhalf"
        )
        writer.write(head.encode())
        await writer.drain()
        await begun.wait()
        writer.close()
        await ended.wait()
        assert await (await client.post("/orders", data=b"whole", headers=KEY)).text() == "whole"
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_the_page_shows_a_program_that_runs(redis_url: str) -> None:
    names = names_of("\n".join(Page("aiohttp.md").all_blocks("python")), "aiohttp.md", redis_url)
    async with TestClient(TestServer(names["create_app"]())) as client:
        order = {"json": {"item": "tea"}, "headers": {**KEY, "X-Api-Key": "k"}}
        first, second = [await client.post("/orders", **order) for _ in range(2)]  # type: ignore[arg-type]
        assert await first.json() == await second.json()
        assert (first.status, second.headers[REPLAYED]) == (201, "true")
        assert (await client.post("/orders", json={}, headers={"X-Api-Key": "k"})).status == 400
        assert (await client.post("/orders", json={}, headers=KEY)).status == 400
