"""Behind a real server: clients that leave, connections that go on, pipelines, HEAD."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fastdedup import Dedup
from fastdedup.integrations.asgi import IdempotencyMiddleware, everyone
from fastdedup.integrations.lifespan import ASGIApp

from .desk import BIG, Desk, at
from .frameworks import app_of
from .live import serving

WaitUntil = Callable[..., Awaitable[Any]]


def guarded(app: ASGIApp, dedup: Dedup, desk: Desk, **settings: Any) -> ASGIApp:
    return IdempotencyMiddleware(
        at(desk, app), dedup, **{"principal": everyone, "docs": "/idempotency", **settings}
    )


@pytest.fixture
def dedup(redis_url: str) -> Dedup:
    return Dedup(redis_url, namespace="t", timeout=5.0)


@pytest.fixture(params=["httptools", "h11"])
def http(request: pytest.FixtureRequest) -> str:
    """Uvicorn's two implementations of HTTP."""
    return str(request.param)


# The client leaves while the handler runs


async def test_finish_the_handler_ends_its_work_and_the_retry_replays_it(
    app: ASGIApp, dedup: Dedup, desk: Desk, wait_until: WaitUntil
) -> None:
    async with serving(guarded(app, dedup, desk)) as live, live.client as client:
        gate = desk.hold()
        wire = await live.connect()
        wire.send("/orders", "k")
        await desk.started.wait()
        wire.leave()
        await wait_until(lambda: live.connections == 0, description="the server knows that the client left")
        raced = await client.post("/orders", headers={"idempotency-key": "k"})
        assert raced.status_code == 409
        gate.set()
        await wait_until(lambda: live.over == 2, description="the first request is over")
        again = await client.post("/orders", headers={"idempotency-key": "k"})
    assert again.json()["run"] == 1
    assert again.headers["idempotency-replayed"] == "true"
    assert (desk.runs["orders"], desk.ended["orders"], desk.cancelled["orders"]) == (1, 1, 0)


async def test_cancel_the_handler_is_stopped_and_the_retry_runs_again(
    app: ASGIApp, dedup: Dedup, desk: Desk, wait_until: WaitUntil
) -> None:
    async with serving(guarded(app, dedup, desk, on_disconnect="cancel")) as live, live.client as client:
        desk.hold()
        wire = await live.connect()
        wire.send("/orders", "k")
        await desk.started.wait()
        wire.leave()
        await wait_until(lambda: live.over == 1, description="the first request is over")
        assert (desk.cancelled["orders"], desk.ended["orders"]) == (1, 0)
        desk.gate = None
        again = await client.post("/orders", headers={"idempotency-key": "k"})
    assert again.json()["run"] == 2
    assert "idempotency-replayed" not in again.headers
    assert desk.ended["orders"] == 1


@pytest.mark.parametrize("on_disconnect", ["finish", "cancel"])
async def test_a_retry_that_waits_from_before_the_client_left_gets_one_outcome_too(
    app: ASGIApp, dedup: Dedup, desk: Desk, wait_until: WaitUntil, on_disconnect: str
) -> None:
    settings = {"on_disconnect": on_disconnect, "wait": 30.0}
    async with serving(guarded(app, dedup, desk, **settings)) as live, live.client as client:
        gate = desk.hold()
        wire = await live.connect()
        wire.send("/orders", "k")
        await desk.started.wait()
        retry = asyncio.ensure_future(client.post("/orders", headers={"idempotency-key": "k"}))
        await wait_until(lambda: live.connections == 2, description="the retry has come")
        wire.leave()
        if on_disconnect == "cancel":
            await wait_until(lambda: desk.cancelled["orders"], description="the handler is cancelled")
        gate.set()
        answer = await retry
    assert answer.status_code == 201
    assert desk.ended["orders"] == 1
    assert answer.json()["run"] == desk.runs["orders"] == (2 if on_disconnect == "cancel" else 1)


async def test_a_client_that_leaves_before_its_body_has_come_leaves_nothing_behind(
    app: ASGIApp, dedup: Dedup, desk: Desk, wait_until: WaitUntil
) -> None:
    async with serving(guarded(app, dedup, desk)) as live, live.client as client:
        wire = await live.connect()
        wire.writer.write(
            b"POST /orders HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 9\r\n\r\nabc"
        )
        await wait_until(lambda: live.connections == 1, description="the request has begun")
        wire.leave()
        await wait_until(lambda: live.over == 1, description="the first request is over")
        assert desk.runs["orders"] == 0
        assert (await client.post("/orders", headers={"idempotency-key": "k"})).json()["run"] == 1


async def test_a_stream_whose_client_leaves_frees_its_key(
    starlette_app: ASGIApp, dedup: Dedup, desk: Desk, wait_until: WaitUntil
) -> None:
    endless = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        """Streams until the client leaves, as frameworks do."""
        assert scope["type"] == "http"
        desk.runs["events"] += 1
        await receive()
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        assert (await receive())["type"] == "http.disconnect"
        endless.set()

    async with serving(guarded(app, dedup, desk)) as live:
        wire = await live.connect()
        wire.send("/events", "k")
        assert b"idempotency-stored: false" in await wire.reader.readuntil(b"data: 1\n\n")
        wire.leave()
        await endless.wait()
        await wait_until(lambda: live.over == 1, description="the stream is over")
        wire = await live.connect()
        wire.send("/events", "k")
        await wire.reader.readuntil(b"data: 1\n\n")
        wire.leave()
        await wait_until(lambda: live.over == 2, description="the second stream is over")
    assert desk.runs["events"] == 2


# Connections


async def test_a_connection_serves_the_next_request_after_each_kind_of_answer(
    app: ASGIApp, dedup: Dedup, desk: Desk, http: str
) -> None:
    async with serving(guarded(app, dedup, desk), http) as live:
        wire = await live.connect()
        for path, key, status in [
            ("/orders", "a", 201),
            ("/orders", "a", 201),
            ("/orders", '"', 400),
            ("/events", "b", 200),
            ("/events", "b", 409),
            ("/big", "c", 201),
            ("/big", "c", 409),
            ("/gone", "d", 404),
            ("/gone", "d", 404),
            ("/redirect", "e", 303),
            ("/redirect", "e", 303),
            ("/empty", "f", 204),
            ("/empty", "f", 204),
            ("/chunks", "g", 200),
            ("/chunks", "g", 200),
            ("/orders", None, 201),
        ]:
            wire.send(path, key, b"")
            answer = await wire.answer()
            assert answer[0] == status, (path, answer)
            if path == "/big":
                assert len(answer[2]) == BIG or status == 409
        wire.send("/orders", "a", b"other")
        assert (await wire.answer())[0] == 422
        await wire.close()


async def test_pipelined_requests_are_answered_in_order_and_once_each(
    app: ASGIApp, dedup: Dedup, desk: Desk, http: str
) -> None:
    async with serving(guarded(app, dedup, desk), http) as live:
        wire = await live.connect()
        for at_ in range(12):
            wire.send("/orders", f"k{at_ % 3}", b"body %d" % (at_ % 3))
        answers = [await wire.answer() for _ in range(12)]
        await wire.close()
    assert [answer[0] for answer in answers] == [201] * 12
    assert [json.loads(answer[2])["run"] for answer in answers] == [1, 2, 3] * 4
    assert ["idempotency-replayed" in answer[1] for answer in answers] == [False] * 3 + [True] * 9
    assert desk.runs["orders"] == 3


@pytest.mark.parametrize("size", [1001, 2_000_000])
async def test_after_a_413_the_connection_is_closed_or_in_order(
    app: ASGIApp, dedup: Dedup, desk: Desk, http: str, size: int
) -> None:
    async with serving(guarded(app, dedup, desk, max_request=1000), http) as live:
        wire = await live.connect()
        wire.send("/orders", "k", b"x" * size)
        status, _, body = await wire.answer()
        assert (status, json.loads(body)["status"]) == (413, 413)
        wire.send("/orders", "k", b"x" * 1000)
        try:
            assert (await wire.answer())[0] == 201
            assert desk.runs["orders"] == 1
        except (asyncio.IncompleteReadError, OSError):
            assert desk.runs["orders"] == 0
        await wire.close()


async def test_a_client_may_ask_before_it_sends_its_body(
    app: ASGIApp, dedup: Dedup, desk: Desk, http: str
) -> None:
    async with serving(guarded(app, dedup, desk), http) as live:
        wire = await live.connect()
        wire.writer.write(
            b"POST /orders HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 3\r\n"
            b"Expect: 100-continue\r\n\r\n"
        )
        assert (await wire.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        wire.writer.write(b"abc")
        status, _, body = await wire.answer()
        await wire.close()
    assert (status, json.loads(body)["size"]) == (201, 3)


async def test_head_of_the_policy_has_the_headers_of_get_and_no_body(
    app: ASGIApp, dedup: Dedup, desk: Desk, http: str
) -> None:
    async with serving(guarded(app, dedup, desk), http) as live:
        wire = await live.connect()
        wire.send("/idempotency", None, method="GET")
        _, of_get, body = await wire.answer()
        wire.send("/idempotency", None, method="HEAD")
        status, of_head, _ = await wire.answer("HEAD")
        wire.send("/idempotency", None, method="GET")
        assert (await wire.answer())[2] == body  # nothing was left over from HEAD
        await wire.close()
    assert status == 200
    assert of_head == {**of_get, "date": of_head["date"]}


async def test_a_chunked_request_is_the_same_as_one_with_its_length(
    app: ASGIApp, dedup: Dedup, desk: Desk, http: str
) -> None:
    async with serving(guarded(app, dedup, desk), http) as live:
        wire = await live.connect()
        wire.send("/orders", "k", b"hello")
        first = await wire.answer()
        wire.writer.write(
            b"POST /orders HTTP/1.1\r\nHost: shop.test\r\nIdempotency-Key: k\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
        )
        again = await wire.answer()
        await wire.close()
    assert again[2] == first[2]
    assert again[1]["idempotency-replayed"] == "true"


# Lifespan


async def test_the_server_opens_the_gate_and_closes_it(
    starlette_app: ASGIApp, dedup: Dedup, desk: Desk
) -> None:
    async with serving(guarded(starlette_app, dedup, desk)):
        assert dedup.is_open
    assert not dedup.is_open


async def test_also_for_an_application_that_has_no_lifespan(dedup: Dedup, desk: Desk) -> None:
    async with serving(guarded(app_of("django"), dedup, desk)) as live, live.client as client:
        assert dedup.is_open
        assert (await client.post("/orders", headers={"idempotency-key": "k"})).status_code == 201
    assert not dedup.is_open
