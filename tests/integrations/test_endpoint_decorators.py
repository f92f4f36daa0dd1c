"""`@idempotent` on one endpoint of Starlette and Litestar, on a real Redis and in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import litestar
import pytest
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from fastdedup import ConfigError, Dedup
from fastdedup.integrations import litestar as for_litestar
from fastdedup.integrations import starlette as for_starlette
from fastdedup.integrations.starlette import by_header, everyone

from .conftest import MakeGate
from .desk import client
from .frameworks import LitestarRequest

CALLER = by_header("x-api-key")


class Desk:
    """Counts runs by name."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()

    async def work(self, name: str) -> dict[str, Any]:
        self.runs[name] += 1
        return {"name": name, "run": self.runs[name]}


def starlette(dedup: Dedup, desk: Desk) -> Any:
    idempotent = for_starlette.idempotent

    @idempotent(dedup, principal=CALLER, key_scope="path", docs="/rules")
    async def order(request: Request) -> Response:
        return JSONResponse(await desk.work(request.path_params["name"]), 201)

    @idempotent(dedup, principal=CALLER)
    def in_thread(request: Request) -> Response:
        desk.runs["thread"] += 1
        return JSONResponse({"run": desk.runs["thread"]})

    class Refund(HTTPEndpoint):
        @idempotent(dedup, principal=CALLER)
        async def post(self, request: Request) -> Response:
            return JSONResponse(await desk.work(f"refund {type(self).__name__}"))

    async def bare(request: Request) -> Response:
        return JSONResponse(await desk.work("bare"))

    @idempotent(dedup, principal=CALLER)
    async def stream(request: Request) -> Response:
        return StreamingResponse(iter([b"a", b"b"]), media_type="text/event-stream")

    return Starlette(
        routes=[
            Route("/orders/{name}", order, methods=["POST", "GET"]),
            Mount("/shop", routes=[Route("/orders/{name}", order, methods=["POST"])]),
            Route("/thread", in_thread, methods=["POST"]),
            Route("/refund", Refund),
            Route("/stream", stream, methods=["POST"]),
            Route("/bare", bare, methods=["POST"]),
        ]
    )


def with_litestar(dedup: Dedup, desk: Desk) -> Any:
    idempotent = for_litestar.idempotent

    @idempotent(dedup, principal=CALLER, key_scope="path", docs="/rules")
    @litestar.route("/orders/{name:str}", http_method=["POST", "GET"], status_code=201)
    async def order(request: LitestarRequest) -> dict[str, Any]:
        return await desk.work(request.path_params["name"])

    @litestar.post("/bare")
    async def bare() -> dict[str, Any]:
        return await desk.work("bare")

    class Shop(litestar.Controller):
        path = "/shop"

        @idempotent(dedup, principal=CALLER)
        @litestar.post("/orders/{name:str}")
        async def order(self, request: LitestarRequest) -> dict[str, Any]:
            return await desk.work(request.path_params["name"])

    return litestar.Litestar([order, bare, Shop], openapi_config=None, logging_config=None)


APPS: dict[str, Callable[[Dedup, Desk], Any]] = {"starlette": starlette, "litestar": with_litestar}


@asynccontextmanager
async def shop(kind: str, dedup: Dedup) -> AsyncIterator[tuple[Desk, httpx.AsyncClient]]:
    desk = Desk()
    async with dedup, client(APPS[kind](dedup, desk), x_api_key="ann") as visitor:
        yield desk, visitor


def keyed(key: str = "k", **headers: str) -> dict[str, str]:
    return {"idempotency-key": key, **headers}


@pytest.mark.parametrize("kind", list(APPS))
async def test_a_decorated_endpoint_runs_once_for_its_key(kind: str, make_gate: MakeGate) -> None:
    async with shop(kind, make_gate()) as (desk, client):
        first, second = [await client.post("/orders/a", headers=keyed()) for _ in range(2)]
        assert first.status_code == second.status_code == 201
        assert first.content == second.content
        assert second.headers["idempotency-replayed"] == "true"
        assert desk.runs == {"a": 1}
        mounted = [await client.post("/shop/orders/b", headers=keyed()) for _ in range(2)]
        assert [answer.json()["run"] for answer in mounted] == [1, 1]


@pytest.mark.parametrize("kind", list(APPS))
async def test_no_caller_gets_anothers_response(kind: str, make_gate: MakeGate) -> None:
    async with shop(kind, make_gate()) as (desk, client):
        ann, bob = [
            await client.post("/orders/a", headers=keyed(**{"x-api-key": name})) for name in ("ann", "bob")
        ]
        nobody = await client.post("/orders/a", headers=keyed(**{"x-api-key": ""}))
        assert (ann.json()["run"], bob.json()["run"]) == (1, 2)
        assert nobody.status_code == 400
        assert nobody.json()["type"].endswith(":principal-required")
        assert nobody.headers["link"] == '</rules>; rel="describedby"'
        assert desk.runs == {"a": 2}


@pytest.mark.parametrize("kind", list(APPS))
async def test_other_endpoints_and_requests_pass(kind: str) -> None:
    async with shop(kind, Dedup("memory://", namespace="t")) as (desk, client):
        for _ in range(2):
            assert (await client.post("/bare", headers=keyed())).is_success
            assert (await client.post("/orders/a")).is_success
            assert (await client.get("/orders/a", headers=keyed())).is_success
        assert desk.runs == {"bare": 2, "a": 4}


async def test_threads_methods_and_streams_of_starlette_work() -> None:
    async with shop("starlette", Dedup("memory://", namespace="t")) as (desk, client):
        for path in ("/thread", "/refund"):
            answers = [await client.post(path, headers=keyed()) for _ in range(2)]
            assert answers[0].content == answers[1].content
        assert desk.runs == {"thread": 1, "refund Refund": 1}
        first, second = [await client.post("/stream", headers=keyed()) for _ in range(2)]
        assert (first.content, first.headers["idempotency-stored"]) == (b"ab", "false")
        assert second.status_code == 409


def test_mistakes_are_told_where_they_are_made() -> None:
    dedup: Any = Dedup("memory://", namespace="t")
    wrong: Any = for_starlette.idempotent
    with pytest.raises(ConfigError, match="unknown setting 'waits'"):
        wrong(dedup, principal=everyone, waits=1)
    with pytest.raises(ConfigError, match=r"must be a fastdedup\.Dedup"):
        wrong(object(), principal=everyone)
    with pytest.raises(ConfigError, match="decorate the method"):
        wrong(dedup, principal=everyone)(HTTPEndpoint)
    with pytest.raises(ConfigError, match="write it above @post"):
        for_litestar.idempotent(dedup, principal=everyone)(Desk.work)  # type: ignore[type-var]


async def test_a_fastapi_operation_is_refused_with_a_hint() -> None:
    dedup = Dedup("memory://", namespace="t")
    operation = for_starlette.idempotent(dedup, principal=everyone)(lambda item: item)
    with pytest.raises(ConfigError, match=r"fastapi\.Claimed"):
        await operation(item=1)
