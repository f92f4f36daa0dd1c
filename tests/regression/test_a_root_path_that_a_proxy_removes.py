"""One instance was reached with its root_path and without it: an honest retry was answered 422, or ran again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.routing import Mount

from fastdedup import Dedup
from fastdedup.integrations.asgi import IdempotencyMiddleware, everyone
from fastdedup.integrations.fastapi import Claimed, Idempotency
from fastdedup.integrations.fastapi import everyone as anybody

KEY = {"Idempotency-Key": "k"}


def claimed(app: FastAPI, dedup: Dedup) -> Any:
    Idempotency(app, dedup)
    return [Claimed(principal=anybody)]


def guarded(app: FastAPI, dedup: Dedup) -> Any:
    app.add_middleware(IdempotencyMiddleware, dedup=dedup, principal=everyone)
    return []


def guarded_by_route(app: FastAPI, dedup: Dedup) -> Any:
    app.add_middleware(IdempotencyMiddleware, dedup=dedup, principal=everyone, routes=["/orders/{id}"])
    return []


@pytest.mark.parametrize("paths", [["/api/orders/7", "/orders/7"], ["/orders/7", "/api/orders/7"]])
@pytest.mark.parametrize("guard", [claimed, guarded, guarded_by_route])
async def test_a_request_is_the_same_with_the_root_path_and_without(
    guard: Callable[..., Any], paths: list[str], redis_url: str
) -> None:
    dedup, app = Dedup(redis_url, namespace="t"), FastAPI()

    @app.post("/orders/{id}", dependencies=guard(app, dedup))
    async def order(id: str, request: Request) -> str:
        return request.scope["path"]  # type: ignore[no-any-return]

    transport = httpx.ASGITransport(app, root_path="/api")
    async with dedup, httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        first, again = [await client.post(path, headers=KEY) for path in paths]
        other = await client.post("/apiary/orders/7", headers=KEY)
    assert first.json() == again.json() == paths[0]
    assert again.headers["idempotency-replayed"] == "true"
    assert other.status_code == 404


async def test_mounts_stay_apart(redis_url: str) -> None:
    dedup, inner = Dedup(redis_url, namespace="t"), FastAPI()

    @inner.post("/orders/{id}", dependencies=claimed(inner, dedup))
    async def order(id: str, request: Request) -> str:
        return request.scope["path"]  # type: ignore[no-any-return]

    app = FastAPI(routes=[Mount("/a", inner), Mount("/b", inner)])
    async with dedup, httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        answers = [await client.post(path, headers=KEY) for path in ("/a/orders/7", "/b/orders/7")]
    assert [answer.json() for answer in answers] == ["/a/orders/7", "/b/orders/7"]
