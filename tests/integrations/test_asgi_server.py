"""Behind a real server: clients that leave, connections that go on, pipelines, HEAD, and a crowd at random."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from fastdedup import Dedup
from fastdedup.integrations.asgi import IdempotencyMiddleware, by_header, everyone
from fastdedup.integrations.http.lifespan import ASGIApp, Message

from .desk import BIG, Desk, at
from .live import Live, Wire, serving

WaitUntil = Callable[..., Awaitable[Any]]
Serve = Callable[..., AbstractAsyncContextManager[Live]]


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


@pytest.fixture
def serve(app: ASGIApp, dedup: Dedup, desk: Desk) -> Serve:
    """Serves the example application in each framework, guarded by these settings."""
    return lambda http="httptools", **settings: serving(guarded(app, dedup, desk, **settings), http)


@pytest.fixture
def serve_one(starlette_app: ASGIApp, dedup: Dedup, desk: Desk) -> Serve:
    """Serves it where the framework makes no difference."""
    return lambda http, **settings: serving(guarded(starlette_app, dedup, desk, **settings), http)


# The client leaves while the handler runs


async def test_finish_the_handler_ends_its_work_and_the_retry_replays_it(
    serve: Serve, desk: Desk, wait_until: WaitUntil
) -> None:
    async with serve() as live, live.client as client:
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


@pytest.mark.parametrize("on_disconnect", ["finish", "cancel"])
async def test_a_retry_that_waits_from_before_the_client_left_gets_one_outcome_too(
    serve: Serve, desk: Desk, wait_until: WaitUntil, on_disconnect: str
) -> None:
    settings = {"on_disconnect": on_disconnect, "wait": 30.0}
    async with serve(**settings) as live, live.client as client:
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
    serve: Serve, desk: Desk, wait_until: WaitUntil
) -> None:
    async with serve() as live, live.client as client:
        wire = await live.connect()
        wire.writer.write(
            b"POST /orders HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 9\r\n\r\nabc"
        )
        await wait_until(lambda: live.connections == 1, description="the request has begun")
        wire.leave()
        await wait_until(lambda: live.over == 1, description="the first request is over")
        assert desk.runs["orders"] == 0
        assert (await client.post("/orders", headers={"idempotency-key": "k"})).json()["run"] == 1


# Connections


async def test_a_connection_serves_the_next_request_after_each_kind_of_answer(
    serve_one: Serve, http: str
) -> None:
    async with serve_one(http) as live:
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
    serve_one: Serve, desk: Desk, http: str
) -> None:
    async with serve_one(http) as live:
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
    serve_one: Serve, desk: Desk, http: str, size: int
) -> None:
    async with serve_one(http, max_request=1000) as live:
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


async def test_a_client_may_ask_before_it_sends_its_body(serve_one: Serve, http: str) -> None:
    async with serve_one(http) as live:
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


async def test_head_of_the_policy_has_the_headers_of_get_and_no_body(serve_one: Serve, http: str) -> None:
    async with serve_one(http) as live:
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


# Lifespan


# Many clients, few keys, random outcomes and departures, against a ledger of what the handlers did


CLIENTS = 24
REQUESTS = 14
KEYS = 40
OUTCOMES = (201, 201, 303, 404, 409, 500, "raise", "slow")


class Ledger:
    """What the handlers did: `kept` counts the outcomes that must be the only ones of their key."""

    def __init__(self, random_: random.Random) -> None:
        self.random = random_
        self.runs = 0
        self.running: Counter[str] = Counter()
        self.kept: defaultdict[str, list[int]] = defaultdict(list)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise ValueError("no lifespan")
        body = b""
        while True:
            message: Message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        name = body.decode()
        self.runs += 1
        run = self.runs
        self.running[name] += 1
        assert self.running[name] == 1, f"{name} runs twice at once"
        try:
            await self.answer(name, run, send)
        finally:
            self.running[name] -= 1

    async def answer(self, name: str, run: int, send: Any) -> None:
        outcome = self.random.choice(OUTCOMES)
        for _ in range(self.random.randrange(40) if outcome == "slow" else self.random.randrange(4)):
            await asyncio.sleep(0)
        if outcome == "raise":
            raise RuntimeError("boom")
        status = 201 if outcome == "slow" else int(outcome)
        text = json.dumps({"name": name, "run": run}).encode()
        headers = [(b"content-length", b"%d" % len(text))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        half = self.random.randrange(len(text))
        await send({"type": "http.response.body", "body": text[:half], "more_body": True})
        await send({"type": "http.response.body", "body": text[half:]})
        if status in (201, 303, 404):  # from here on nobody cancels it
            self.kept[name].append(run)


class Visitor:
    """Sends requests, retries, and leaves at any moment."""

    def __init__(self, live: Live, random_: random.Random, seen: defaultdict[str, set[bytes]]) -> None:
        self.live = live
        self.random = random_
        self.seen = seen
        self.statuses: Counter[int] = Counter()

    async def visit(self) -> None:
        wire = await self.live.connect()
        for _ in range(REQUESTS):
            name = f"k{self.random.randrange(KEYS)}"
            wire.send("/", name, name.encode(), "X-Account: ann")
            if self.random.random() < 0.3:
                for _ in range(self.random.randrange(30)):
                    await asyncio.sleep(0)
                wire.leave()
                wire = await self.live.connect()
                continue
            wire = await self.read(wire, name)
        await wire.close()

    async def read(self, wire: Wire, name: str) -> Wire:
        status, headers, body = await wire.answer()
        self.statuses[status] += 1
        if status in (201, 303, 404):
            self.seen[name].add(body)
        else:
            assert status in (409, 500), (status, body)
            assert "idempotency-replayed" not in headers
        if headers.get("connection") != "close":
            return wire
        await wire.close()  # as uvicorn does after an exception
        return await self.live.connect()


@pytest.mark.parametrize(
    ("seed", "on_disconnect", "wait"),
    [(0, "finish", 0.0), (1, "finish", 20.0), (2, "cancel", 0.0), (3, "cancel", 20.0)],
)
async def test_a_kept_outcome_is_the_only_one_of_its_key_and_everybody_sees_that_one(
    redis_url: str,
    wait_until: WaitUntil,
    monkeypatch: pytest.MonkeyPatch,
    on_disconnect: str,
    wait: float,
    seed: int,
) -> None:
    ledger = Ledger(random.Random(seed))
    seen: defaultdict[str, set[bytes]] = defaultdict(set)
    dedup = Dedup(redis_url, namespace="t", timeout=5.0)
    app = IdempotencyMiddleware(
        ledger.app,
        dedup,
        principal=by_header("x-account"),
        wait=wait,
        on_disconnect=on_disconnect,  # type: ignore[arg-type]
    )
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "disabled", True)  # handlers raise, on purpose
    async with serving(app) as live:
        visitors = [Visitor(live, random.Random(f"{seed} {at}"), seen) for at in range(CLIENTS)]
        await asyncio.gather(*(visitor.visit() for visitor in visitors))
        await wait_until(lambda: live.connections == 0, description="all are gone")
        await wait_until(lambda: not +ledger.running, description="all handlers have ended")
        async with live.client as client:  # what became of those whose client left: the retry tells
            for name in list(ledger.kept):
                headers = {"idempotency-key": name, "x-account": "ann"}
                again = await client.post("/", content=name, headers=headers)
                assert again.headers["idempotency-replayed"] == "true"
                seen[name].add(again.content)
    repeated = {name: runs for name, runs in ledger.kept.items() if len(runs) > 1}
    assert not repeated
    assert all(len(bodies) == 1 for bodies in seen.values()), seen
    for name, bodies in seen.items():
        assert json.loads(next(iter(bodies)))["run"] == ledger.kept[name][-1]
    assert ledger.runs > KEYS
