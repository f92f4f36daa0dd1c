"""A 307 or 308 to the same path was kept under the key that the redirected request has as well.

An application that redirects to https, to www, or to `/orders/` was so never reached: its client got the redirect
again and again, or 422, key-reused, until the record expired.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import flask
import httpx
import pytest
from django.http import HttpResponse, HttpResponseRedirect
from django.test import Client
from django.urls import path
from starlette.applications import Starlette
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.routing import Route

from fastdedup import Dedup
from fastdedup.integrations import asgi, wsgi
from fastdedup.sync import Dedup as SyncDedup

from ..integrations import django_project as django_project  # sets Django up
from ..integrations.django_shop import open_shop

KEY = {"Idempotency-Key": "k"}


async def order(request: Any) -> PlainTextResponse:
    return PlainTextResponse("ordered")


async def moved(request: Any) -> RedirectResponse:
    return RedirectResponse("/orders")  # 307


@asynccontextmanager
async def visitor(redis_url: str, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    dedup = Dedup(redis_url, namespace="t")
    routes = [Route("/orders", order, methods=["POST"]), Route("/old", moved, methods=["POST"])]
    inner = TrustedHostMiddleware(Starlette(routes=routes), ["www.shop.test"])
    app = asgi.IdempotencyMiddleware(inner, dedup, principal=asgi.everyone, **settings)
    transport = httpx.ASGITransport(app)
    async with (
        dedup,
        httpx.AsyncClient(
            transport=transport,
            base_url="http://www.shop.test",
            headers=KEY,
            follow_redirects=True,
            max_redirects=3,
        ) as client,
    ):
        yield client


@pytest.mark.parametrize("settings", [{}, {"keep_headers": ["content-type"]}])
@pytest.mark.parametrize("url", ["http://shop.test/orders", "/orders/"])
async def test_asgi_keeps_no_redirect_to_the_same_path(
    url: str, settings: dict[str, Any], redis_url: str
) -> None:
    one_application = {"tenant": lambda request: ""}  # both hosts are names of one application
    async with visitor(redis_url, routes=["/orders"], **one_application, **settings) as client:
        answers = [await client.post(url) for _ in range(2)]
    assert [answer.text for answer in answers] == ["ordered"] * 2
    assert len(answers[0].history) == 1
    assert "idempotency-replayed" in answers[1].headers


async def test_asgi_replays_a_redirect_to_another_path(redis_url: str) -> None:
    """Its handler may have had an effect: Starlette's redirects are 307 unless the handler says otherwise."""
    async with visitor(redis_url) as client:
        first, again = [await client.post("/old") for _ in range(2)]
    assert first.text == again.text == "ordered"
    assert "idempotency-replayed" in again.history[0].headers


def test_wsgi_keeps_no_redirect_to_the_same_path(redis_url: str) -> None:
    shop = flask.Flask("shop")
    shop.post("/orders/")(lambda: "ordered")
    with SyncDedup(redis_url, namespace="t") as dedup:
        shop.wsgi_app = wsgi.IdempotencyMiddleware(  # type: ignore[method-assign]
            shop.wsgi_app, dedup, principal=wsgi.everyone, routes=["/orders"]
        )
        client = shop.test_client()
        answers = [client.post("/orders", headers=KEY, follow_redirects=True) for _ in range(2)]
    assert [answer.text for answer in answers] == ["ordered"] * 2
    assert answers[1].headers["idempotency-replayed"] == "true"


# Django


def secure(get_response: Any) -> Any:
    def middleware(request: Any) -> HttpResponse:
        if request.is_secure():
            return get_response(request)  # type: ignore[no-any-return]
        return HttpResponseRedirect(f"https://testserver{request.path}", status=308)

    return middleware


urlpatterns = (path("orders", lambda request: HttpResponse("ordered")),)


@pytest.fixture
def browser(redis_url: str) -> Iterator[Client]:
    with open_shop(
        ROOT_URLCONF=urlpatterns,
        MIDDLEWARE=["fastdedup.integrations.django.IdempotencyMiddleware", f"{__name__}.secure"],
        FASTDEDUP={"url": redis_url, "namespace": "t", "timeout": 5.0},
        FASTDEDUP_HTTP={"principal": "fastdedup.integrations.django.everyone"},
    ):
        yield Client(headers=KEY)


def test_django_keeps_no_redirect_to_the_same_path(browser: Client) -> None:
    answers = [browser.post("/orders", follow=True) for _ in range(2)]
    assert [answer.content for answer in answers] == [b"ordered"] * 2
    assert answers[1]["idempotency-replayed"] == "true"
