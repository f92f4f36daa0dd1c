"""A response shorter than its own Content-Length was stored, and every retry got the broken one again."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from fastdedup import Dedup
from fastdedup.integrations import asgi, wsgi
from fastdedup.integrations.django import everyone, idempotent
from fastdedup.sync import Dedup as SyncDedup

from ..integrations import django_project as django_project  # sets Django up
from ..integrations.django_shop import open_shop
from ..integrations.wsgi_apps import call

LENGTH = "10"
KEY = {"Idempotency-Key": "k"}
bodies: list[bytes] = []


@idempotent(principal=everyone)
def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse(bodies.pop(0), headers={"Content-Length": LENGTH})


urlpatterns = (path("orders", view),)


@pytest.fixture(autouse=True)
def _bodies() -> None:
    bodies[:] = [b"", b"half", b"0123456789", b"never made"]


async def test_asgi_keeps_only_a_whole_response() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", LENGTH.encode())]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": bodies.pop(0)})

    async with Dedup() as dedup:
        guarded = asgi.IdempotencyMiddleware(app, dedup, principal=asgi.everyone)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(guarded), base_url="http://shop.test"
        ) as client:
            found = [await client.post("/orders", headers=KEY) for _ in range(4)]
    assert [each.content for each in found] == [b"", b"half", b"0123456789", b"0123456789"]
    assert found[3].headers["idempotency-replayed"] == "true"


def test_wsgi_keeps_only_a_whole_response() -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("201 Created", [("Content-Length", LENGTH), ("Content-Type", "text/plain")])
        return [bodies.pop(0)]

    with SyncDedup() as dedup:
        guarded = wsgi.IdempotencyMiddleware(app, dedup, principal=asgi.everyone)
        found = [call(guarded, HTTP_IDEMPOTENCY_KEY="k", checked=False) for _ in range(4)]
    assert [each.body for each in found] == [b"", b"half", b"0123456789", b"0123456789"]


def test_django_keeps_only_a_whole_response(redis_url: str) -> None:
    with open_shop(ROOT_URLCONF=urlpatterns, FASTDEDUP={"url": redis_url, "namespace": "t", "timeout": 5.0}):
        found = [Client().post("/orders", headers=KEY) for _ in range(4)]
    assert [each.content for each in found] == [b"", b"half", b"0123456789", b"0123456789"]
