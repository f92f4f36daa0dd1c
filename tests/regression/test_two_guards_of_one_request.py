"""Two guards around one handler locked each other out: the inner one met the outer one's claim, 409, for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flask
import httpx
import pytest
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse
from django.urls import path
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from werkzeug.test import Client

from fastdedup import Dedup
from fastdedup.integrations import asgi, starlette, wsgi
from fastdedup.integrations import flask as for_flask
from fastdedup.sync import Dedup as SyncDedup

from ..integrations import django_project as django_project  # sets Django up
from ..integrations.django_shop import open_shop

KEY = {"Idempotency-Key": "k"}


async def made(request: Request) -> PlainTextResponse:
    return PlainTextResponse("made")


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("made")


urlpatterns = [path("orders", view)]


def shop_of_starlette(endpoint: Any) -> Starlette:
    return Starlette(routes=[Route("/orders", endpoint, methods=["POST"])])


def in_asgi(dedup: Dedup) -> Any:
    return asgi.IdempotencyMiddleware(shop_of_starlette(made), dedup, principal=asgi.everyone)


def in_starlette(dedup: Dedup) -> Any:
    return shop_of_starlette(starlette.idempotent(dedup, principal=asgi.everyone)(made))


def in_django(dedup: Dedup) -> Any:
    return ASGIHandler()


@pytest.mark.parametrize("inner", [in_asgi, in_starlette, in_django])
async def test_of_two_asgi_guards_the_outer_one_claims(inner: Callable[..., Any], redis_url: str) -> None:
    async with Dedup(redis_url, namespace="t") as dedup:
        with a_django(redis_url):
            app = asgi.IdempotencyMiddleware(inner(dedup), dedup, principal=asgi.everyone, routes=["/orders"])
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
                first, again = [await client.post("/orders", headers=KEY) for _ in range(2)]
    assert (first.text, again.text) == ("made", "made")
    assert again.headers["idempotency-replayed"] == "true"


def in_wsgi(dedup: SyncDedup) -> Any:
    return wsgi.IdempotencyMiddleware(shop_of_flask().wsgi_app, dedup, principal=wsgi.everyone)


def in_flask(dedup: SyncDedup) -> Any:
    shop = shop_of_flask(for_flask.idempotent(principal=wsgi.everyone))
    for_flask.FastDedup(shop, dedup)
    return shop


def shop_of_flask(decorator: Any = lambda view: view) -> flask.Flask:
    shop = flask.Flask("shop")
    shop.post("/orders")(decorator(lambda: "made"))
    return shop


def in_django_of_wsgi(dedup: SyncDedup) -> Any:
    return WSGIHandler()


@pytest.mark.parametrize("inner", [in_wsgi, in_flask, in_django_of_wsgi])
def test_of_two_wsgi_guards_the_outer_one_claims(inner: Callable[..., Any], redis_url: str) -> None:
    with SyncDedup(redis_url, namespace="t", timeout=5.0) as dedup, a_django(redis_url):
        app = wsgi.IdempotencyMiddleware(inner(dedup), dedup, principal=wsgi.everyone, routes=["/orders"])
        client = Client(app)
        first, again = [client.post("/orders", headers=KEY, base_url="http://testserver") for _ in range(2)]
    assert (first.text, again.text) == ("made", "made")
    assert again.headers["idempotency-replayed"] == "true"


def a_django(redis_url: str) -> Any:
    """Set Django up, with its middleware and the same records."""
    return open_shop(
        ROOT_URLCONF=__name__,
        MIDDLEWARE=["fastdedup.integrations.django.IdempotencyMiddleware"],
        FASTDEDUP={"url": redis_url, "namespace": "t", "timeout": 5.0},
        FASTDEDUP_HTTP={"principal": asgi.everyone, "routes": ["/orders"]},
    )
