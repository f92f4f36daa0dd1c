"""Under the default routes `/plain` and `/plain/` had keys of their own: an application with both worked twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flask
import httpx
import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import re_path
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from fastdedup import Dedup
from fastdedup.integrations import asgi, starlette, wsgi
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.web.inspection import get_request

from ..integrations import django_project as django_project  # sets Django up
from ..integrations.django_shop import open_shop

KEY = {"Idempotency-Key": "k"}
PATHS = ["/plain", "/plain/", "/plain"]


async def told(request: Request) -> PlainTextResponse:
    return PlainTextResponse(request.url.path)


def serving_both() -> Starlette:
    return Starlette(routes=[Route(path, told, methods=["POST"]) for path in PATHS[:2]])


def redirecting() -> Starlette:
    return Starlette(routes=[Route("/plain", told, methods=["POST"])])


def exactly(request: Any) -> Any:
    return [request.path, request.query.hex(), request.body.hex()]


async def posted(app: Any, redis_url: str, paths: list[str], **settings: Any) -> list[httpx.Response]:
    dedup = Dedup(redis_url, namespace="t")
    transport = httpx.ASGITransport(
        asgi.IdempotencyMiddleware(app, dedup, principal=asgi.everyone, **settings)
    )
    client = httpx.AsyncClient(transport=transport, base_url="http://x", follow_redirects=True)
    async with dedup, client:
        return [await client.post(path, headers=KEY) for path in paths]


@pytest.mark.parametrize(
    ("app", "paths"), [(serving_both, PATHS), (redirecting, PATHS), (redirecting, ["/plain/"] * 2)]
)
async def test_a_path_with_a_slash_at_its_end_is_the_same(
    app: Callable[[], Any], paths: list[str], redis_url: str
) -> None:
    first, *others = await posted(app(), redis_url, paths)
    assert {first.text, *(other.text for other in others)} == {"/plain"}
    assert {other.headers["idempotency-replayed"] for other in others} == {"true"}


async def test_two_resources_are_told_apart_by_the_path_as_it_is(redis_url: str) -> None:
    answers = await posted(serving_both(), redis_url, PATHS, fingerprint=exactly)
    assert [answer.status_code for answer in answers] == [200, 422, 200]


async def test_two_declared_routes_are_told_apart(redis_url: str) -> None:
    async with Dedup(redis_url, namespace="t") as dedup:
        one, other = (starlette.idempotent(dedup, principal=asgi.everyone)(told) for _ in range(2))
        routes = [
            Route(path, view, methods=["POST"]) for path, view in zip(PATHS, (one, other), strict=False)
        ]
        transport = httpx.ASGITransport(Starlette(routes=routes))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            answers = [await client.post(path, headers=KEY) for path in PATHS]
        for path in PATHS:
            assert await get_request(dedup, "POST", path, key="k") is not None
    assert [answer.status_code for answer in answers] == [200, 422, 200]


def test_wsgi_serves_both_paths_once(redis_url: str) -> None:
    shop = flask.Flask("shop")
    shop.add_url_rule("/plain/", view_func=lambda: flask.request.path, methods=["POST"], strict_slashes=False)
    with SyncDedup(redis_url, namespace="t", timeout=5.0) as dedup:
        middleware = wsgi.IdempotencyMiddleware(shop.wsgi_app, dedup, principal=wsgi.everyone)
        shop.wsgi_app = middleware  # type: ignore[method-assign]
        answers = [shop.test_client().post(path, headers=KEY).text for path in PATHS]
    assert answers == ["/plain"] * 3


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.path)


urlpatterns = (re_path("^plain/?$", view),)


def test_django_serves_both_paths_once(redis_url: str) -> None:
    with open_shop(
        ROOT_URLCONF=urlpatterns,
        MIDDLEWARE=["fastdedup.integrations.django.IdempotencyMiddleware"],
        FASTDEDUP={"url": redis_url, "namespace": "t", "timeout": 5.0},
        FASTDEDUP_HTTP={"principal": asgi.everyone},
    ):
        answers = [Client(headers=KEY).post(path).content for path in PATHS]
    assert answers == [b"/plain"] * 3
