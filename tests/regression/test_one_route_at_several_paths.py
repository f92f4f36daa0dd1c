"""One key at two paths of a route: the second path got the first response where `fingerprint=` left out the path.

A name in braces was seen. A mount's part of the path, and the names in Django's patterns, were not. And two mounts of
one application shared a record: with the default fingerprint the second one was answered 422.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path, re_path
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount
from starlette.routing import Route as Path

from fastdedup import Dedup
from fastdedup.integrations import asgi, starlette, wsgi
from fastdedup.integrations.django import everyone, idempotent
from fastdedup.sync import Dedup as SyncDedup

from ..integrations import django_project as django_project  # sets Django up
from ..integrations.django_shop import open_shop
from ..integrations.wsgi_apps import call

KEY = {"Idempotency-Key": "k"}


def body_of(request: Any) -> bytes:
    return bytes(request.body)


@idempotent(principal=everyone, fingerprint=body_of)
def pay(request: HttpRequest, number: str) -> HttpResponse:
    return HttpResponse(request.path)


urlpatterns = (
    path("c/<int:number>/pay", pay),
    re_path(r"^r/(?P<number>\d+)/pay$", pay),
)


async def answer(request: Request) -> PlainTextResponse:
    return PlainTextResponse(request.url.path)


def decorated(dedup: Dedup) -> Any:
    endpoint = starlette.idempotent(dedup, principal=asgi.everyone, fingerprint=body_of)(answer)
    return Starlette(routes=[Path("/orders", endpoint, methods=["POST"])])


def behind_middleware(dedup: Dedup) -> Any:
    inner = Starlette(routes=[Path("/orders", answer, methods=["POST"])])
    routes = ["/orders"]
    return asgi.IdempotencyMiddleware(
        inner, dedup, principal=asgi.everyone, routes=routes, fingerprint=body_of
    )


@pytest.mark.parametrize("make", [decorated, behind_middleware])
async def test_mounts_never_replay_each_others_responses(make: Callable[[Dedup], Any]) -> None:
    async with Dedup() as dedup:
        app = Starlette(routes=[Mount("/shop/{name}", make(dedup))])
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop.test")
        async with client:
            places = ["/shop/a/orders", "/shop/b/orders", "/shop/a/orders"]
            found = [await client.post(place, headers=KEY, content=b"tea") for place in places]
    assert [each.status_code for each in found] == [200, 200, 200]
    assert [each.text for each in found] == ["/shop/a/orders", "/shop/b/orders", "/shop/a/orders"]
    assert [each.headers.get("idempotency-replayed") for each in found] == [None, None, "true"]


def test_mounts_of_a_wsgi_application_have_keys_of_their_own() -> None:
    def inner(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [environ["SCRIPT_NAME"].encode()]

    with SyncDedup() as dedup:
        app = wsgi.IdempotencyMiddleware(inner, dedup, principal=asgi.everyone, routes=["/orders"])
        environs = [{"SCRIPT_NAME": mount, "PATH_INFO": "/orders"} for mount in ("/v1", "/v2", "/v1")]
        found = [call(app, HTTP_IDEMPOTENCY_KEY="k", **environ) for environ in environs]
    assert [each.body for each in found] == [b"/v1", b"/v2", b"/v1"]


@pytest.mark.parametrize("places", [["/c/1/pay", "/c/2/pay"], ["/r/1/pay", "/r/2/pay"]])
def test_paths_of_a_django_pattern_never_replay_each_other(places: list[str], redis_url: str) -> None:
    with open_shop(ROOT_URLCONF=urlpatterns, FASTDEDUP={"url": redis_url, "namespace": "t", "timeout": 5.0}):
        found = [Client().post(place, headers=KEY) for place in (*places, places[0])]
    assert [each.status_code for each in found] == [200, 422, 200]
    assert found[2].content.decode() == places[0]
