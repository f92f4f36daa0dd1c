"""A replay has the first response's status line, header names and kind, and none of its credentials.

Replays said `201 Created` for `201 CREATED` and had lower-case names; Django's were no redirects, whose `url` a test
client follows; and `Authorization` and `WWW-Authenticate` came again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref import simple_server

import httpx
import pytest
from django.http import HttpResponse, HttpResponsePermanentRedirect, HttpResponseRedirect
from django.shortcuts import redirect
from django.test import Client
from django.urls import path
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from fastdedup import Dedup
from fastdedup.integrations import asgi, wsgi
from fastdedup.sync import Dedup as SyncDedup

from ..integrations import django_project as django_project  # sets Django up
from ..integrations.django_shop import open_shop
from ..integrations.wsgi_apps import call

KEY = {"Idempotency-Key": "k"}
SECRETS = {"Authorization": "Bearer s3cret", "WWW-Authenticate": "Bearer", "Authentication-Info": "qop=auth"}


# WSGI, under a real server


class Server(ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True


class Handler(simple_server.WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def served(app: Any) -> Iterator[int]:
    server = simple_server.make_server("127.0.0.1", 0, app, Server, Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_wsgi_replay_has_the_status_line_and_header_names_of_the_first(redis_url: str) -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("201 CREATED", [("Content-Type", "text/plain"), ("X-OrderID", "7"), *SECRETS.items()])
        return [b"made"]

    with (
        SyncDedup(redis_url, namespace="t") as dedup,
        served(wsgi.IdempotencyMiddleware(app, dedup, principal=wsgi.everyone)) as port,
    ):
        first, again = (sent(port) for _ in range(2))
    assert first[0] == again[0] == "CREATED"
    assert ("X-OrderID", "7") in first[1]
    kept = {pair for pair in first[1] if pair[0] not in SECRETS}
    assert set(again[1]) == kept | {("idempotency-replayed", "true")}


def sent(port: int) -> tuple[str, list[tuple[str, str]]]:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("POST", "/", headers=KEY)
        answer = connection.getresponse()
        assert answer.read() == b"made"
        return answer.reason, [pair for pair in answer.getheaders() if pair[0] not in ("Date", "Server")]
    finally:
        connection.close()


async def test_what_wsgi_has_stored_asgi_replays_in_lower_case(redis_url: str) -> None:
    """Both may serve one API; ASGI requires lower case."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("201 CREATED", [("Content-Type", "text/plain"), ("X-OrderID", "7")])
        return [b"made"]

    with SyncDedup(redis_url, namespace="t") as dedup:
        shop = wsgi.IdempotencyMiddleware(app, dedup, principal=wsgi.everyone)
        call(shop, "/", b"", key="k")
    gate = Dedup(redis_url, namespace="t")
    replaying = asgi.IdempotencyMiddleware(Starlette(), gate, principal=asgi.everyone)
    async with (
        gate,
        httpx.AsyncClient(transport=httpx.ASGITransport(replaying), base_url="http://127.0.0.1") as http,
    ):
        replay = await http.post("/", headers=KEY)
    assert (b"x-orderid", b"7") in replay.headers.raw


async def test_an_asgi_replay_has_no_credentials(redis_url: str) -> None:
    async def order(request: Any) -> PlainTextResponse:
        return PlainTextResponse("made", headers={**SECRETS, "X-Order": "7"})

    dedup = Dedup(redis_url, namespace="t")
    inner = Starlette(routes=[Route("/", order, methods=["POST"])])
    app = asgi.IdempotencyMiddleware(
        inner, dedup, principal=asgi.everyone, keep_headers=["x-order", *SECRETS]
    )
    async with (
        dedup,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop.test") as http,
    ):
        first, again = [await http.post("/", headers=KEY) for _ in range(2)]
    assert {name.lower() for name in SECRETS} <= set(first.headers)
    assert set(again.headers) == {"x-order", "idempotency-replayed"}


# Django


def go(request: Any, status: int) -> HttpResponse:
    if status == 303:
        return HttpResponse(status=303, headers={"Location": "/done"})
    return redirect("/done", permanent=status == 301)


def own(request: Any) -> HttpResponse:
    return HttpResponse("made", status=201, reason="MADE", headers={**SECRETS, "X-OrderID": "7"})


class AppRedirect(HttpResponseRedirect):
    allowed_schemes = ("shop",)


urlpatterns = (
    path("go/<int:status>", go),
    path("app", lambda request: AppRedirect("shop://orders/7")),
    path("own", own),
    path("done", lambda request: HttpResponse("thank you")),
)


@pytest.fixture
def visitor(redis_url: str) -> Iterator[Client]:
    with open_shop(
        ROOT_URLCONF=urlpatterns,
        MIDDLEWARE=["fastdedup.integrations.django.IdempotencyMiddleware"],
        FASTDEDUP={"url": redis_url, "namespace": "t", "timeout": 5.0},
        FASTDEDUP_HTTP={"principal": "fastdedup.integrations.django.everyone"},
    ):
        yield Client(headers=KEY)


@pytest.mark.parametrize(
    ("status", "made"),
    [(302, HttpResponseRedirect), (301, HttpResponsePermanentRedirect), (303, HttpResponseRedirect)],
)
def test_a_replayed_redirect_of_django_is_one(status: int, made: type, visitor: Client) -> None:
    visitor.post(f"/go/{status}")
    replay = visitor.post(f"/go/{status}")
    assert replay["Idempotency-Replayed"] == "true"
    assert (type(replay), replay.status_code, replay.url) == (made, status, "/done")
    assert visitor.post(f"/go/{status}", follow=True).content == b"thank you"


def test_a_replayed_redirect_may_lead_to_another_scheme(visitor: Client) -> None:
    assert [visitor.post("/app")["Location"] for _ in range(2)] == ["shop://orders/7"] * 2


def test_a_replay_of_django_has_the_reason_and_the_header_names(visitor: Client) -> None:
    first, again = visitor.post("/own"), visitor.post("/own")
    assert (first.reason_phrase, again.reason_phrase) == ("MADE", "MADE")
    assert "X-OrderID" in [name for name, _ in again.items()]
    assert not {name for name in SECRETS if name in again}
