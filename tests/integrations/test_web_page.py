"""docs/http-rules.md: its snippets run; a browser of another origin may send keys and read what became of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import litestar
import pytest
import starlette.routing
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, SimpleUser
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route

from fastdedup import Dedup
from fastdedup.integrations.asgi import IdempotencyMiddleware

from ..sql_pages.pages import Page

PAGE = Page("http-rules.md")
FIRST, COMMITS, TENANTS, ENDPOINTS, CORS = PAGE.all_blocks("python")
ORIGIN = "https://shop.example"
TELLS_ROUTES = 'scope["route"]' in Path(starlette.routing.__file__).read_text()


def names_of(snippet: str, dedup: Dedup | None = None, **names: Any) -> dict[str, Any]:
    names |= {"dedup": dedup, "__name__": __name__}
    exec(compile(snippet, PAGE.name, "exec"), names)
    return names


def client_of(app: Any) -> httpx.AsyncClient:
    headers = {"origin": ORIGIN, "x-api-key": "ann"}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop", headers=headers)


@pytest.fixture
def dedup() -> Dedup:
    return Dedup("memory://", namespace="t")


async def test_its_middleware_guards_and_publishes_the_rules() -> None:
    async def created(request: Request) -> Response:
        return Response(status_code=201)

    shop = Starlette(routes=[Route("/orders", created, methods=["POST"])])
    keys = {"ann": "ann"}

    class ApiKeys(AuthenticationBackend):
        async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser]:
            key = conn.headers.get("x-api-key", "")
            if key not in keys:
                raise AuthenticationError("this key is not known")
            return AuthCredentials(), SimpleUser(keys[key])

    names = names_of(FIRST.replace("redis://localhost:6379/0", "memory://"), app=shop, ApiKeys=ApiKeys)
    async with names["dedup"], client_of(names["app"]) as client:
        answers = [await client.post("/orders", headers={"idempotency-key": "k"}) for _ in range(2)]
        assert answers[1].headers["idempotency-replayed"] == "true"
        refused = await client.post("/orders")
        assert (refused.status_code, refused.links["describedby"]["url"]) == (400, "/idempotency")
        assert (await client.get("/idempotency")).json()["operations"]
        del keys["ann"]
        revoked = await client.post("/orders", headers={"idempotency-key": "k"})
        assert revoked.status_code == 400, "what authenticates answers, and not the gate"


async def test_its_session_commits_before_the_response(dedup: Dedup) -> None:
    fails = iter([True, False])

    @asynccontextmanager
    async def begin() -> AsyncIterator[None]:
        yield
        if next(fails):
            raise OSError("the database has gone")

    names = names_of(COMMITS, dedup, begin=begin)
    transport = httpx.ASGITransport(names["books"], raise_app_exceptions=False)
    async with dedup, httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        answers = [await client.post("/orders", headers={"idempotency-key": "k"}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [500, 201, 201]
    assert "idempotency-replayed" in answers[2].headers


async def test_its_tenants_have_keys_of_their_own(dedup: Dedup) -> None:
    async def told(request: Request) -> Response:
        return Response(request.url.hostname)

    shop = Starlette(routes=[Route("/orders", told, methods=["POST"])])
    names = names_of(TENANTS, dedup, app=shop, IdempotencyMiddleware=IdempotencyMiddleware)
    async with dedup, client_of(names["shops"]) as client:
        hosts = ["a.test", "b.test", "a.test"]
        asked = [{"idempotency-key": "k", "host": host} for host in hosts]
        assert [(await client.post("/orders", headers=one)).text for one in asked] == hosts


async def test_its_endpoints_work(dedup: Dedup) -> None:
    names = names_of(ENDPOINTS, dedup)
    apps = [
        ("/c/1/pay", Starlette(routes=[Route("/c/{id}/pay", names["pay"], methods=["POST"])])),
        ("/orders", litestar.Litestar([names["order"]], openapi_config=None)),
    ]
    async with dedup:
        for path, app in apps:
            async with client_of(app) as client:
                answers = [await client.post(path, headers={"idempotency-key": "k"}) for _ in range(2)]
                assert answers[0].is_success, answers[0].text
                assert answers[1].headers["idempotency-replayed"] == "true"


@pytest.mark.skipif(not TELLS_ROUTES, reason="this Starlette does not tell its route")
async def test_a_key_of_a_route_is_refused_at_another_path(dedup: Dedup) -> None:
    app = Starlette(routes=[Route("/c/{id}/pay", names_of(ENDPOINTS, dedup)["pay"], methods=["POST"])])
    async with dedup, client_of(app) as client:
        answers = [await client.post(f"/c/{cart}/pay", headers={"idempotency-key": "k"}) for cart in (1, 2)]
        assert [answer.status_code for answer in answers] == [200, 422]


async def test_a_browser_of_another_origin_may_use_keys(dedup: Dedup) -> None:
    routes = [Route("/c/{id}/pay", names_of(ENDPOINTS, dedup)["pay"].__wrapped__, methods=["POST"])]
    app = Starlette(routes=routes, middleware=names_of(CORS, dedup)["middleware"])
    asked = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type, idempotency-key, x-api-key",
    }
    async with dedup, client_of(app) as client:
        preflight = await client.options("/c/1/pay", headers=asked)
        assert preflight.status_code == 200, preflight.text
        first, second, reused = [
            await client.post(f"/c/1/pay{query}", headers={"idempotency-key": "k"})
            for query in ("", "", "?x")
        ]
        assert [first.status_code, second.status_code, reused.status_code] == [200, 200, 422]
        for answer in (first, second, reused):
            assert answer.headers.get_list("access-control-allow-origin") == [ORIGIN]
            exposed = answer.headers["access-control-expose-headers"].lower().split(", ")
            assert {"idempotency-replayed", "retry-after", "location"} <= set(exposed)
