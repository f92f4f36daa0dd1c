"""FastAPI's dependencies: a request that fails before its handler leaves its key free, also if one ends late."""

# No `from __future__ import annotations` here: FastAPI reads the annotations of handlers made in a function.

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Form, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Mount

from fastdedup import Claim, Dedup
from fastdedup.integrations.asgi import IdempotencyMiddleware, everyone
from fastdedup.integrations.fastapi import Claimed, Idempotency, OneTimeToken
from fastdedup.integrations.fastapi import everyone as anybody
from fastdedup.integrations.unreached import watch

from ..integrations.desk import client

# FastAPI's validation errors burned the key: the corrected request was refused 422, key-reused, for an
# hour. The key is claimed before FastAPI has checked the request: under `Claimed` in the last of its
# dependencies, under the middleware before all of them.


KEY = {"Idempotency-Key": "k"}
Shop = Callable[..., Any]


class Order(BaseModel):
    amount: int


class OutOfStock(Exception):
    """What a dependency raises; the application has a handler of its own for it."""


async def in_stock(amount: Annotated[int, Query()] = 1) -> None:
    if amount > 100:
        raise OutOfStock
    if amount > 50:
        raise HTTPException(404, "no such amount")


async def out_of_stock(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": "out of stock"}, 422)


def add_routes(app: FastAPI, runs: list[Any], *dependencies: Any) -> None:
    app.exception_handler(OutOfStock)(out_of_stock)

    @app.post("/orders", dependencies=[*dependencies])
    async def order(body: Order) -> dict[str, int]:
        runs.append(body)
        if body.amount == 13:  # as some do by hand: the handler has run
            raise RequestValidationError(
                [{"loc": ("body", "amount"), "msg": "unlucky", "type": "value_error"}]
            )
        return {"run": len(runs)}

    @app.post("/stock", dependencies=[*dependencies, Depends(in_stock)])
    def stock(amount: int) -> dict[str, int]:
        runs.append(amount)
        return {"run": len(runs)}


def under_claimed(dedup: Dedup, runs: list[Any], **settings: Any) -> Any:
    app = FastAPI()
    Idempotency(app, dedup)
    add_routes(app, runs, Claimed(principal=anybody, **settings))
    return app


def behind_http_middleware(dedup: Dedup, runs: list[Any], **settings: Any) -> Any:
    """Between the capture and the routes there is middleware that runs the application in another task."""
    app = FastAPI()

    @app.middleware("http")
    async def passing(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    Idempotency(app, dedup)
    add_routes(app, runs, Claimed(principal=anybody, **settings))
    return app


def inside(dedup: Dedup, runs: list[Any], **settings: Any) -> Any:
    app = FastAPI()
    add_routes(app, runs)
    app.add_middleware(BaseHTTPMiddleware, dispatch=lambda request, call_next: call_next(request))
    app.add_middleware(IdempotencyMiddleware, dedup=dedup, principal=everyone, **settings)
    return app


def around(dedup: Dedup, runs: list[Any], **settings: Any) -> Any:
    app = FastAPI()
    add_routes(app, runs)
    return IdempotencyMiddleware(CORSMiddleware(app), dedup, principal=everyone, **settings)


def mounted(dedup: Dedup, runs: list[Any], **settings: Any) -> Any:
    """The middleware cannot know of a mounted application: it is told."""
    app = FastAPI()
    add_routes(app, runs)
    watch(app)
    return IdempotencyMiddleware(Starlette(routes=[Mount("/", app)]), dedup, principal=everyone, **settings)


WAYS = [under_claimed, behind_http_middleware, inside, around, mounted]


@asynccontextmanager
async def visiting(
    make: Shop, runs: list[Any], url: str, **settings: Any
) -> AsyncIterator[httpx.AsyncClient]:
    dedup = Dedup(url, namespace="t", timeout=5.0)
    async with dedup, client(make(dedup, runs, **settings), raises=True, **KEY) as visitor:
        yield visitor


@pytest.mark.parametrize("make", WAYS)
@pytest.mark.parametrize("wrong", [b'{"amount": "many"}', b"{", b""])
async def test_after_a_validation_error_the_corrected_request_runs(
    redis_url: str, make: Shop, wrong: bytes
) -> None:
    runs: list[Any] = []
    json = {"content-type": "application/json"}
    async with visiting(make, runs, redis_url) as client:
        refused = await client.post("/orders", content=wrong, headers=json)
        corrected = await client.post("/orders", json={"amount": 1})
        again = await client.post("/orders", json={"amount": 1})
    assert refused.status_code == 422
    assert "detail" in refused.json()
    assert corrected.json() == again.json() == {"run": 1}
    assert again.headers["idempotency-replayed"] == "true"
    assert len(runs) == 1


@pytest.mark.parametrize("make", WAYS)
@pytest.mark.parametrize(("amount", "status"), [("many", 422), ("70", 404), ("700", 422)])
async def test_after_a_dependencys_error_the_corrected_request_runs(
    redis_url: str, make: Shop, amount: str, status: int
) -> None:
    runs: list[Any] = []
    async with visiting(make, runs, redis_url) as client:
        assert (await client.post("/stock", params={"amount": amount})).status_code == status
        assert (await client.post("/stock", params={"amount": "1"})).json() == {"run": 1}


@pytest.mark.parametrize("make", WAYS)
async def test_an_error_of_the_handler_itself_is_kept(redis_url: str, make: Shop) -> None:
    runs: list[Any] = []
    async with visiting(make, runs, redis_url) as client:
        first = await client.post("/orders", json={"amount": 13})
        again = await client.post("/orders", json={"amount": 13})
        other = await client.post("/orders", json={"amount": 1})
    assert first.status_code == again.status_code == other.status_code == 422
    assert again.headers["idempotency-replayed"] == "true"
    assert other.json()["type"] == "urn:fastdedup:problem:key-reused"
    assert len(runs) == 1


@pytest.mark.parametrize("make", WAYS)
async def test_keep_unreached_keeps_the_validation_error(redis_url: str, make: Shop) -> None:
    runs: list[Any] = []
    async with visiting(make, runs, redis_url, keep_unreached=True) as client:
        refused = await client.post("/orders", json={"amount": "many"})
        again = await client.post("/orders", json={"amount": "many"})
        corrected = await client.post("/orders", json={"amount": 1})
    assert again.content == refused.content
    assert again.headers["idempotency-replayed"] == "true"
    assert corrected.json()["type"] == "urn:fastdedup:problem:key-reused"
    assert not runs


async def test_a_form_with_errors_leaves_its_token_valid(redis_url: str) -> None:
    async with Dedup(redis_url, namespace="t", timeout=5.0) as dedup:
        app = FastAPI()
        Idempotency(app, dedup)

        @app.post("/form")
        async def form(
            amount: Annotated[int, Form()], claim: Annotated[Claim, OneTimeToken(subject=anybody)]
        ) -> int:
            return amount

        token = await dedup.tokens.issue()
        async with client(app, raises=True) as visitor:
            named = {"one_time_token": token}
            assert (await visitor.post("/form", data={"amount": "many", **named})).status_code == 422
            assert (await visitor.post("/form", data={"amount": "1", **named})).json() == 1
            assert (await visitor.post("/form", data={"amount": "2", **named})).status_code != 200


# A dependency with `yield` committed after the response: a 201 was replayed for a day, and nothing was
# committed.


Commits = list[str]


class Session:
    """A session whose commit fails once."""

    def __init__(self) -> None:
        self.commits: Commits = []
        self.fails = True

    async def begin(self) -> AsyncIterator[None]:
        yield
        if self.fails:
            self.fails = False
            raise OSError("the database has gone")
        self.commits.append("order")

    def __call__(self) -> Iterator[None]:
        yield


def claimed(app: FastAPI, dedup: Dedup) -> Any:
    Idempotency(app, dedup)
    return [Depends(anybody), Claimed(principal=anybody)]


def guarded(app: FastAPI, dedup: Dedup) -> Any:
    app.add_middleware(IdempotencyMiddleware, dedup=dedup, principal=everyone)
    return []


def shop(guard: Callable[..., Any], dedup: Dedup, dependency: Any) -> FastAPI:
    app, router = FastAPI(), APIRouter(prefix="/api")
    guards = guard(app, dedup)

    @router.post("/orders", status_code=201, dependencies=guards)
    async def order(session: Any = dependency) -> str:
        return "ordered"

    @router.get("/health", dependencies=[Depends(unguarded)])
    async def health() -> str:
        return "well"

    app.include_router(router)
    return app


def unguarded() -> Iterator[None]:
    yield


async def start(app: Any) -> None:
    """Run an application's lifespan."""
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        assert not message["type"].endswith("failed"), message

    await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)


@pytest.mark.parametrize("guard", [claimed, guarded])
@pytest.mark.parametrize("nested", [False, True])
async def test_a_dependency_that_ends_late_is_told_at_the_start(
    guard: Callable[..., Any], nested: bool, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session()
    dependency = Depends(session.begin)
    if nested:
        inner = Depends(session)

        async def around(inner: Any = inner) -> None:
            """It depends on an object that generates."""

        dependency = Depends(around)
    with caplog.at_level(logging.WARNING, "fastdedup.web"):  # another test may have set another level
        await start(shop(guard, Dedup(redis_url, namespace="t"), dependency))
    (line,) = [record.getMessage() for record in caplog.records if record.name == "fastdedup.web"]
    assert "/api/orders" in line
    assert 'scope="function"' in line
    assert ("Session()" if nested else "Session.begin()") in line


@pytest.mark.parametrize("guard", [claimed, guarded])
async def test_a_dependency_of_the_functions_scope_fails_the_request(
    guard: Callable[..., Any], redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    session, dedup = Session(), Dedup(redis_url, namespace="t")
    app = shop(guard, dedup, Depends(session.begin, scope="function"))
    await start(app)
    assert not [record for record in caplog.records if record.name == "fastdedup.web"]
    async with dedup, client(app) as visitor:
        answers = [await visitor.post("/api/orders", headers=KEY) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [500, 201, 201]
    assert "idempotency-replayed" in answers[2].headers
    assert session.commits == ["order"]
