"""A gate at module level under test clients, which give each test, or each request, an event loop of its own."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Iterator
from typing import Annotated, Any

import httpx
import pytest
import uvloop
from django.test import AsyncClient, Client
from fastapi import FastAPI

from fastdedup import Claim, Dedup
from fastdedup.integrations import wsgi
from fastdedup.integrations.asgi import IdempotencyMiddleware, everyone
from fastdedup.integrations.fastapi import Claimed, Idempotency
from fastdedup.integrations.fastapi import everyone as anybody
from fastdedup.integrations.http.lifespan import ASGIApp
from fastdedup.sync import Dedup as SyncDedup

from ..stores import TIMEOUT
from ..waiting import run
from . import django_project as django_project  # sets Django up
from .conftest import MakeGate
from .desk import Desk
from .django_shop import SETTINGS, open_shop

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.simplefilter("ignore", UserWarning)  # newer ones ask for another httpx
    from fastapi.testclient import TestClient

KEY = {"idempotency-key": "k"}
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What a loop that has ended leaves behind is neither a warning nor a line in the log."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gc.collect()
    # A synchronous gate that an earlier test left open may log minutes later, in a thread that outlives tests.
    said = [record for record in caplog.records if record.threadName != "fastdedup-sync"]
    assert not [record.getMessage() for record in said if record.levelname in ("WARNING", "ERROR")]


def behind_the_middleware(dedup: Dedup, desk: Desk) -> ASGIApp:
    app = FastAPI()

    @app.post("/orders")
    async def order() -> dict[str, int]:
        desk.runs["orders"] += 1
        return {"run": desk.runs["orders"]}

    return IdempotencyMiddleware(app, dedup, principal=everyone)


def with_claimed(dedup: Dedup, desk: Desk) -> ASGIApp:
    app = FastAPI()
    Idempotency(app, dedup)

    @app.post("/orders")
    async def order(claim: Annotated[Claim, Claimed(principal=anybody)]) -> dict[str, int]:
        desk.runs["orders"] += 1
        return {"run": desk.runs["orders"]}

    return app


@pytest.fixture(params=[behind_the_middleware, with_claimed])
def served(request: pytest.FixtureRequest, make_gate: MakeGate, desk: Desk) -> tuple[ASGIApp, Dedup]:
    """An application, and the gate at its module's level."""
    dedup = make_gate(known_duplicates=0.0)
    return request.param(dedup, desk), dedup


def test_a_client_without_lifespan_sees_its_duplicates(served: tuple[ASGIApp, Dedup], desk: Desk) -> None:
    """Each request has a loop of its own, which nobody tells the gate to leave."""
    app, dedup = served
    client = TestClient(app)
    answers = [client.post("/orders", headers=KEY) for _ in range(3)]
    assert [answer.json() for answer in answers] == [{"run": 1}] * 3
    assert [answer.headers.get("idempotency-replayed") for answer in answers] == [None, "true", "true"]
    assert desk.runs["orders"] == 1
    run(dedup.aclose)


def test_two_tests_with_lifespans_use_one_gate(served: tuple[ASGIApp, Dedup], desk: Desk) -> None:
    """The second begins after the first has closed the gate; memory:// then begins empty."""
    app, dedup = served
    runs = []
    for _ in range(3):
        with TestClient(app) as client:
            answers = [client.post("/orders", headers=KEY).json()["run"] for _ in range(2)]
            assert answers[0] == answers[1]
            runs.append(answers[0])
        assert not dedup.is_open
    in_memory = dedup.gate.connection.store.__class__.__name__ == "MemoryStore"
    assert runs == ([1, 2, 3] if in_memory else [1, 1, 1])


@pytest.mark.parametrize("loop", LOOPS)
def test_async_tests_with_loops_of_their_own_use_one_gate(
    served: tuple[ASGIApp, Dedup], desk: Desk, loop: Any
) -> None:
    """Httpx's transport runs no lifespan, so nothing closes the gate at the end of each test."""
    app, dedup = served

    async def test() -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t") as client:  # type: ignore[arg-type]
            answers = await asyncio.gather(*(client.post("/orders", headers=KEY) for _ in range(3)))
            again = await client.post("/orders", headers=KEY)
        assert {answer.status_code for answer in answers} <= {200, 409}
        return [again.json()["run"]]

    assert [run(test, loop) for _ in range(3)] == [[1]] * 3
    assert desk.runs["orders"] == 1
    run(dedup.aclose, loop)


def test_clients_of_all_kinds_follow_each_other(served: tuple[ASGIApp, Dedup], desk: Desk) -> None:
    app, dedup = served

    async def test() -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t") as client:  # type: ignore[arg-type]
            return (await client.post("/orders", headers={"idempotency-key": "other"})).status_code

    for _ in range(2):
        assert run(test) == 200
        assert TestClient(app).post("/orders", headers=KEY).status_code == 200
        with TestClient(app) as client:
            assert client.post("/orders", headers=KEY).status_code == 200
    assert not dedup.is_open


@pytest.mark.parametrize("store", ["redis", "memory"])
@pytest.mark.parametrize("view", ["/sync/ok", "/async/ok"])
def test_django_sees_duplicates_from_sync_and_async_clients(
    store: str, view: str, request: pytest.FixtureRequest
) -> None:
    """Its gate is in a thread of its own, and so in no test's loop."""
    url = "memory://" if store == "memory" else request.getfixturevalue("redis_url")
    settings: dict[str, Any] = {
        "ROOT_URLCONF": "tests.integrations.django_api",
        "MIDDLEWARE": [*SETTINGS["MIDDLEWARE"], "fastdedup.integrations.django.IdempotencyMiddleware"],
        "FASTDEDUP": {"url": url, "namespace": "t", "timeout": TIMEOUT},
        "FASTDEDUP_HTTP": {"principal": "tests.integrations.django_api.visitor"},
    }
    post: dict[str, Any] = {"data": b"tea", "content_type": "text/plain", "headers": {"Idempotency-Key": "k"}}

    async def awaited() -> bytes:
        return bytes((await AsyncClient().post(view, **post)).content)

    with open_shop(**settings):
        answers = [run(awaited), run(awaited), Client().post(view, **post).content]
        answers.append(Client().post(view, **post).content)
    assert answers == [b"order 1"] * 4


@pytest.mark.parametrize("store", ["redis", "memory"])
def test_a_wsgi_client_goes_on_after_the_gate_was_reopened(
    store: str, request: pytest.FixtureRequest
) -> None:
    url = "memory://" if store == "memory" else request.getfixturevalue("redis_url")
    dedup = SyncDedup(url, namespace="t", timeout=TIMEOUT, known_duplicates=0.0)
    runs: list[int] = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        runs.append(len(runs) + 1)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"%d" % runs[-1]]

    transport = httpx.WSGITransport(wsgi.IdempotencyMiddleware(app, dedup, principal=wsgi.everyone))
    told = []
    for _ in range(2):  # two tests with a fixture that opens the gate and closes it
        with dedup, httpx.Client(transport=transport, base_url="http://t") as client:
            told.append([client.post("/orders", headers=KEY).text for _ in range(2)])
    assert told == ([["1", "1"], ["1", "1"]] if store == "redis" else [["1", "1"], ["2", "2"]])
