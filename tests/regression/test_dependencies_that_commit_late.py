"""A dependency with `yield` committed after the response: a 201 was replayed for a day, and nothing was committed."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI

from fastdedup import Dedup
from fastdedup.integrations.asgi import IdempotencyMiddleware, everyone
from fastdedup.integrations.fastapi import Claimed, Idempotency
from fastdedup.integrations.fastapi import everyone as anybody

KEY = {"Idempotency-Key": "k"}
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
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(dedup)
        client = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://x"))
        answers = [await client.post("/api/orders", headers=KEY) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [500, 201, 201]
    assert "idempotency-replayed" in answers[2].headers
    assert session.commits == ["order"]
