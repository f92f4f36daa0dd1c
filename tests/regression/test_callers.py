"""Each caller has keys of its own, and a caller without a name has none."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import httpx
import pytest
from django.test import AsyncClient, Client
from fastapi import Body, FastAPI, Header
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from fastdedup import Claim, Dedup
from fastdedup.integrations import asgi
from fastdedup.integrations.asgi import IdempotencyMiddleware, by_header
from fastdedup.integrations.django import by_user
from fastdedup.integrations.fastapi import Claimed, Idempotency, everyone

from ..fixtures import fixture_with
from ..integrations import django_project as django_project  # sets Django up
from ..integrations.desk import behind, client
from ..integrations.django_inside import SETTINGS
from ..integrations.django_shop import Desk, behind_middleware, open_shop
from ..integrations.live import serving
from ..killable import DEADLINE

# A request whose caller is unknown is refused, and not taken for every other unknown caller. The first
# unknown caller's response was replayed to all others: None was a principal like any other.


KEY = {"Idempotency-Key": "k"}
UNKNOWN = [{}, {"x-user": ""}]
"""The headers of a caller without a name."""


def user(request: Any) -> str | None:
    return request.header("x-user")  # type: ignore[no-any-return]


async def account(x_user: Annotated[str | None, Header()] = None) -> str | None:
    return x_user


PRINCIPALS = [user, asgi.by_header("x-user")]


def assert_refused(status: int, body: bytes) -> None:
    """The caller has no name."""
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

    app = Starlette(routes=[Route("/", order, methods=["POST"])])
    async with behind(Dedup(redis_url, namespace="t"), app, principal=principal) as visitor:
        await assert_named_callers_only(visitor, runs)


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

    async with dedup, client(app, raises=True) as visitor:
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


# A framework that authenticates inside of the view never replays one caller's response to another. REST
# Framework and Ninja did: the principal was asked before they authenticated, and found nobody for
# everybody.


REPLAYED = "Idempotency-Replayed"


desk = fixture_with(
    lambda redis_url: open_shop(**SETTINGS, FASTDEDUP={"url": redis_url, "namespace": "t", "timeout": 5.0})
)


def post(url: str, token: str | None = None, item: str = "tea", key: str | None = "k") -> Any:
    scheme = "Token" if url.startswith("/drf") else "Bearer"
    headers = {} if token is None else {"Authorization": f"{scheme} {token}"}
    headers |= {} if key is None else {"Idempotency-Key": key}
    client = Client(raise_request_exception=False)
    return client.post(url, json.dumps({"item": item}), content_type="application/json", headers=headers)


async def apost(url: str, token: str | None) -> Any:
    headers = {"Idempotency-Key": "k"} | ({} if token is None else {"Authorization": f"Bearer {token}"})
    return await AsyncClient().post(url, b"{}", content_type="application/json", headers=headers)


DRF = ["/drf/view", "/drf/parsed", "/drf/lazy", "/drf/function", "/drf/orders/", "/drf/orders/7/refund/"]


@pytest.mark.parametrize("url", DRF)
def test_each_user_of_rest_framework_has_their_own_key(url: str, desk: Desk) -> None:
    ann, again, bob, nobody = (post(url, token) for token in ("ann's", "ann's", "bob's", None))
    assert [ann.status_code, again.status_code, bob.status_code] == [201, 201, 201]
    assert [ann.content, again.content, bob.content] == [b'{"order":1}', b'{"order":1}', b'{"order":2}']
    assert (ann.get(REPLAYED), again.get(REPLAYED), bob.get(REPLAYED)) == (None, "true", None)
    assert_no_principal(nobody)


def test_a_decorated_dispatch_of_rest_framework_refuses(desk: Desk) -> None:
    for token in ("ann's", "bob's", None):
        assert_no_principal(post("/drf/outside", token))
    assert post("/drf/outside", "ann's", key=None).status_code == 201


def test_the_middleware_in_front_of_rest_framework_refuses(redis_url: str) -> None:
    settings = {name: value for name, value in SETTINGS.items() if name != "MIDDLEWARE"}
    with behind_middleware(redis_url, {"principal": by_user}, **settings) as desk:
        for token in ("ann's", "bob's", None):
            assert_no_principal(post("/drf/view", token))
        assert not desk.orders


def test_a_wrong_token_is_told_by_rest_framework(desk: Desk) -> None:
    post("/drf/view", "ann's")
    assert post("/drf/view", "eve's").status_code == 403
    assert post("/drf/lazy", "eve's").status_code == 403


def test_each_caller_of_ninja_has_their_own_key(desk: Desk) -> None:
    ann, again, bob = (post("/ninja/orders", token) for token in ("ann's", "ann's", "bob's"))
    assert [ann.json(), again.json(), bob.json()] == [{"order": 1}, {"order": 1}, {"order": 2}]
    assert (ann.get(REPLAYED), again.get(REPLAYED), bob.get(REPLAYED)) == (None, "true", None)
    assert [post("/ninja/orders", token).status_code for token in ("eve's", None)] == [401, 401]
    assert_no_principal(post("/ninja/open", "ann's"))


async def test_each_caller_of_an_async_operation_has_their_own_key(desk: Desk) -> None:
    ann, again, bob, nobody = [
        await apost("/ninja/async", token) for token in ("ann's", "ann's", "bob's", None)
    ]
    assert [ann.json(), again.json(), bob.json()] == [{"order": 1}, {"order": 1}, {"order": 2}]
    assert again[REPLAYED] == "true"
    assert nobody.status_code == 401


def assert_no_principal(answer: Any) -> None:
    assert_refused(answer.status_code, answer.content)


# A request with two X-Api-Key headers got its key under the first one, where its application may take the
# last.


async def order(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"an order of {dict(request.scope['headers'])[b'x-api-key'].decode()}")


@pytest.mark.parametrize("names", [["bob", "ann"], ["ann", "bob"], ["ann", "ann"], ["ann", ""], ["", "ann"]])
async def test_a_header_given_twice_names_nobody(names: list[str]) -> None:
    app = Starlette(routes=[Route("/orders", order, methods=["POST"])])
    async with behind(Dedup("memory://"), app, principal=by_header("X-Api-Key")) as visitor:
        key = ("Idempotency-Key", "k")
        await visitor.post("/orders", headers=[key, ("X-Api-Key", "ann")])
        refused = await visitor.post("/orders", headers=[key, *(("X-Api-Key", name) for name in names)])
    assert_refused(refused.status_code, refused.content)


# uvicorn's httptools puts the trailers of a body in chunks into the list of the request's headers, while the body
# comes. What authenticates had read the headers before; the gate read them after the body, and took a trailer for the
# caller's name: a stranger got the stored response of that caller.


def under_middleware(dedup: Dedup) -> Any:
    async def endpoint(request: Request) -> PlainTextResponse:
        return PlainTextResponse("secret")

    inner = Starlette(routes=[Route("/", endpoint, methods=["POST"])])
    return IdempotencyMiddleware(inner, dedup, principal=by_header("x-user"))


def under_claimed(dedup: Dedup) -> Any:
    app = FastAPI()
    Idempotency(app, dedup)

    @app.post("/")
    async def endpoint(
        order: Annotated[dict[str, int], Body()], claim: Annotated[Claim, Claimed(principal=account)]
    ) -> str:
        return "secret"  # FastAPI reads the body before it asks for the caller

    return app


@pytest.mark.parametrize("http", ["httptools", "h11"])
@pytest.mark.parametrize("make", [under_middleware, under_claimed])
async def test_a_trailer_names_no_caller(redis_url: str, make: Any, http: str) -> None:
    guarded, begun = make(Dedup(redis_url, namespace="t")), asyncio.Event()

    async def authenticated(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            begun.set()
        await guarded(scope, receive, send)

    async with serving(authenticated, http) as live, live.client as client, asyncio.timeout(DEADLINE):
        assert (await client.post("/", headers={**KEY, "x-user": "victim"}, json={})).is_success
        begun.clear()
        wire = await live.connect()
        head = (
            b"POST / HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\nIdempotency-Key: k\r\n\r\n"
        )
        wire.writer.write(head)
        await begun.wait()
        wire.writer.write(b"2\r\n{}\r\n0\r\nX-User: victim\r\n\r\n")
        status, _, body = await wire.answer()
        await wire.close()
    assert_refused(status, body)
