"""A 5xx response whose claim was lost was sent under ASGI and Django: as under WSGI, its client now gets 409."""

from __future__ import annotations

import os
from typing import Any

import httpx
import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from fastdedup import Dedup
from fastdedup.integrations import asgi, wsgi
from fastdedup.integrations.django import claim_of, everyone, idempotent
from fastdedup.sync import Dedup as SyncDedup

from ..integrations import django_project as django_project  # sets Django up
from ..integrations.django_shop import open_shop
from ..integrations.wsgi_apps import call

KEY = {"Idempotency-Key": "k"}
LOST = "urn:fastdedup:problem:claim-lost"


@idempotent(principal=everyone)
def view(request: HttpRequest) -> HttpResponse:
    claim = claim_of(request)
    assert claim is not None
    with SyncDedup(os.environ["SHOP"], namespace="t") as dedup:
        dedup.scoped("http").forget(claim.key)
    return HttpResponse("failed", status=503)


urlpatterns = (path("orders", view),)


async def test_asgi_answers_409_in_place_of_a_failed_response() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await dedup.scoped("http").forget(asgi.claim_of(scope).key)  # type: ignore[union-attr]
        await send({"type": "http.response.start", "status": 503, "headers": []})
        await send({"type": "http.response.body", "body": b"failed"})

    async with Dedup() as dedup:
        guarded = asgi.IdempotencyMiddleware(app, dedup, principal=asgi.everyone)
        transport = httpx.ASGITransport(guarded)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop.test") as client:
            found = await client.post("/orders", headers=KEY)
    assert (found.status_code, found.json()["type"]) == (409, LOST)


def test_wsgi_answers_409_in_place_of_a_failed_response() -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        claim = wsgi.claim_of(environ)
        assert claim is not None
        dedup.scoped("http").forget(claim.key)
        start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
        return [b"failed"]

    with SyncDedup() as dedup:
        guarded = wsgi.IdempotencyMiddleware(app, dedup, principal=asgi.everyone)
        found = call(guarded, HTTP_IDEMPOTENCY_KEY="k")
    assert (found.status, found.problem) == (409, "claim-lost")


def test_django_answers_409_in_place_of_a_failed_response(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP", redis_url)
    with open_shop(ROOT_URLCONF=urlpatterns, FASTDEDUP={"url": redis_url, "namespace": "t", "timeout": 5.0}):
        found = Client().post("/orders", headers=KEY)
    assert (found.status_code, found.json()["type"]) == (409, LOST)
