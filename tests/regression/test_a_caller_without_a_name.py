"""A request whose caller is unknown is refused, and not taken for every other unknown caller.

The first unknown caller's response was replayed to all others: None was a principal like any other.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import flask
import httpx
import pytest
from django.test import Client
from fastapi import FastAPI, Header
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from fastdedup import Claim, Dedup
from fastdedup.integrations import asgi, wsgi
from fastdedup.integrations.fastapi import Claimed, Idempotency, everyone
from fastdedup.sync import Dedup as SyncDedup

from ..integrations import django_project as django_project  # sets Django up
from ..integrations.django_shop import open_shop

KEY = {"Idempotency-Key": "k"}
UNKNOWN = [{}, {"x-user": ""}]
"""The headers of a caller without a name."""


def user(request: Any) -> str | None:
    return request.header("x-user")  # type: ignore[no-any-return]


async def account(x_user: Annotated[str | None, Header()] = None) -> str | None:
    return x_user


PRINCIPALS = [user, asgi.by_header("x-user")]


def assert_refused(status: int, body: bytes) -> None:
    assert status == 400
    assert json.loads(body)["type"] == "urn:fastdedup:problem:principal-required"


async def assert_named_callers_only(visitor: httpx.AsyncClient, runs: list[Any]) -> None:
    for headers in UNKNOWN:
        answer = await visitor.post("/", headers={**KEY, **headers})
        assert_refused(answer.status_code, answer.content)
    assert not runs
    assert (await visitor.post("/")).is_success
    assert (await visitor.post("/", headers={**KEY, "x-user": "ann"})).is_success


@pytest.mark.parametrize("principal", PRINCIPALS)
async def test_asgi_refuses_a_caller_without_a_name(principal: Any, redis_url: str) -> None:
    runs = []

    async def order(request: Any) -> PlainTextResponse:
        runs.append(request)
        return PlainTextResponse("done")

    dedup = Dedup(redis_url, namespace="t")
    app = asgi.IdempotencyMiddleware(
        Starlette(routes=[Route("/", order, methods=["POST"])]), dedup, principal=principal
    )
    async with dedup, client(app) as visitor:
        await assert_named_callers_only(visitor, runs)


@pytest.mark.parametrize("principal", PRINCIPALS)
def test_wsgi_refuses_a_caller_without_a_name(principal: Any, redis_url: str) -> None:
    runs = []
    shop = flask.Flask("shop")
    shop.post("/")(lambda: runs.append(1) or "done")  # type: ignore[func-returns-value]
    with SyncDedup(redis_url, namespace="t") as dedup:
        shop.wsgi_app = wsgi.IdempotencyMiddleware(  # type: ignore[method-assign]
            shop.wsgi_app, dedup, principal=principal
        )
        visitor = shop.test_client()
        for headers in UNKNOWN:
            answer = visitor.post("/", headers={**KEY, **headers})
            assert_refused(answer.status_code, answer.data)
        assert not runs
        assert visitor.post("/").status_code == 200
        assert visitor.post("/", headers={**KEY, "x-user": "ann"}).status_code == 200


async def test_fastapi_refuses_a_caller_without_a_name(redis_url: str) -> None:
    runs = []
    dedup = Dedup(redis_url, namespace="t")
    app = FastAPI()
    Idempotency(app, dedup)

    @app.post("/")
    async def order(claim: Annotated[Claim | None, Claimed(principal=account)]) -> None:
        runs.append(claim)

    @app.post("/shared")
    async def shared(claim: Annotated[Claim | None, Claimed(principal=everyone)]) -> None: ...

    async with dedup, client(app) as visitor:
        await assert_named_callers_only(visitor, runs)
        answers = [await visitor.post("/shared", headers=KEY) for _ in range(2)]
    assert "idempotency-replayed" in answers[1].headers


@pytest.mark.parametrize("principal", ["fastdedup.integrations.django.by_user", *PRINCIPALS])
def test_django_refuses_a_caller_without_a_name(principal: Any, redis_url: str) -> None:
    from ..integrations.django_shop import SETTINGS

    with open_shop(
        ROOT_URLCONF="tests.integrations.django_api",
        MIDDLEWARE=[*SETTINGS["MIDDLEWARE"], "fastdedup.integrations.django.IdempotencyMiddleware"],
        FASTDEDUP={"url": redis_url, "namespace": "t", "timeout": 5.0},
        FASTDEDUP_HTTP={"principal": principal},
    ) as desk:
        visitor = Client()
        for headers in UNKNOWN:
            answer = visitor.post("/sync/ok", headers={**KEY, **headers})
            assert_refused(answer.status_code, answer.content)
        assert not desk.orders
        visitor.get("/in/ann")
        assert visitor.post("/sync/ok", headers={**KEY, "x-user": "ann"}).status_code == 201


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop.test")
