"""A response is replayed as it was sent, and kept only if it is whole, its own and still recorded."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref import simple_server

import httpx
import pytest
import redis
from django.http import HttpRequest, HttpResponse, HttpResponsePermanentRedirect, HttpResponseRedirect
from django.shortcuts import redirect
from django.test import Client
from django.urls import path
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from fastdedup import Dedup
from fastdedup.integrations import asgi, wsgi
from fastdedup.integrations.django import claim_of, everyone, idempotent
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.web.response import HeaderFilter

from ..integrations import django_project as django_project  # sets Django up
from ..integrations.django_shop import open_shop
from ..integrations.wsgi_apps import call

# A replay has the first response's status line, header names and kind, and none of its credentials. Replays
# said `201 Created` for `201 CREATED` and had lower-case names; Django's were no redirects, whose `url` a
# test client follows; and `Authorization` and `WWW-Authenticate` came again.


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


REPLAYED_URLS = (
    path("go/<int:status>", go),
    path("app", lambda request: AppRedirect("shop://orders/7")),
    path("own", own),
    path("done", lambda request: HttpResponse("thank you")),
)


@pytest.fixture
def visitor(redis_url: str) -> Iterator[Client]:
    with open_shop(
        ROOT_URLCONF=REPLAYED_URLS,
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


# A header that `Connection` names was stored and replayed, though it is of one connection.


HOP: Any = [
    (b"Connection", b"close, X-Hop"),
    (b"connection", b"x-other"),
    (b"x-hop", b"1"),
    (b"X-Other", b"2"),
]


@pytest.mark.parametrize("keep", [None, ["x-hop", "x-end"]])
def test_a_header_that_connection_names_is_not_stored(keep: Any) -> None:
    assert HeaderFilter(keep, [])([*HOP, (b"x-end", b"3")]) == [(b"x-end", b"3")]


async def test_a_header_that_connection_names_is_not_replayed(redis_url: str) -> None:
    async def order(request: Request) -> PlainTextResponse:
        return PlainTextResponse("made", headers={"Connection": "X-Hop", "X-Hop": "1", "X-End": "3"})

    dedup = Dedup(redis_url, namespace="t")
    shop = Starlette(routes=[Route("/orders", order, methods=["POST"])])
    transport = httpx.ASGITransport(asgi.IdempotencyMiddleware(shop, dedup, principal=asgi.everyone))
    async with dedup, httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        first, again = [await client.post("/orders", headers=KEY) for _ in range(2)]
    assert (first.headers["x-hop"], first.headers["x-end"]) == ("1", "3")
    assert "x-hop" not in again.headers
    assert again.headers["x-end"] == "3"


# A response shorter than its own Content-Length was stored, and every retry got the broken one again.


LENGTH = "10"
bodies: list[bytes] = []


@idempotent(principal=everyone)
def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse(bodies.pop(0), headers={"Content-Length": LENGTH})


SHORT_URLS = (path("orders", view),)


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
    with open_shop(ROOT_URLCONF=SHORT_URLS, FASTDEDUP={"url": redis_url, "namespace": "t", "timeout": 5.0}):
        found = [Client().post("/orders", headers=KEY) for _ in range(4)]
    assert [each.content for each in found] == [b"", b"half", b"0123456789", b"0123456789"]


# A response whose key another program had overwritten became a 500 under ASGI, though its handler had run.


def overwrite(url: str) -> None:
    """Put another program's value in the place of the claim."""
    with redis.Redis.from_url(url) as raw:
        for key in raw.scan_iter():
            raw.set(key, "another program's", ex=60)


def seen(answer: httpx.Response) -> tuple[int, str, str | None]:
    return answer.status_code, answer.text, answer.headers.get("idempotency-stored")


async def test_asgi_sends_it_marked_as_not_stored(redis_url: str) -> None:
    async def shop(scope: Any, receive: Any, send: Any) -> None:
        overwrite(redis_url)
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"made"})

    async with Dedup(redis_url, namespace="t") as dedup:
        guarded = asgi.IdempotencyMiddleware(shop, dedup, principal=asgi.everyone)
        transport = httpx.ASGITransport(guarded)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop.test") as client:
            assert seen(await client.post("/orders", headers=KEY)) == (201, "made", "false")


def test_wsgi_sends_it_marked_as_not_stored(redis_url: str) -> None:
    def shop(environ: Any, start_response: Any) -> Any:
        overwrite(redis_url)
        start_response("201 Created", [])
        return [b"made"]

    with SyncDedup(redis_url, namespace="t") as dedup:
        guarded = wsgi.IdempotencyMiddleware(shop, dedup, principal=wsgi.everyone)
        with httpx.Client(transport=httpx.WSGITransport(guarded), base_url="http://shop.test") as client:
            assert seen(client.post("/orders", headers=KEY)) == (201, "made", "false")


# A 5xx response whose claim was lost was sent under ASGI and Django: as under WSGI, its client now gets
# 409.


LOST = "urn:fastdedup:problem:claim-lost"


@idempotent(principal=everyone)
def failing_view(request: HttpRequest) -> HttpResponse:
    claim = claim_of(request)
    assert claim is not None
    with SyncDedup(os.environ["SHOP"], namespace="t") as dedup:
        dedup.scoped("http").forget(claim.key)
    return HttpResponse("failed", status=503)


FAILING_URLS = (path("orders", failing_view),)


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
    with open_shop(ROOT_URLCONF=FAILING_URLS, FASTDEDUP={"url": redis_url, "namespace": "t", "timeout": 5.0}):
        found = Client().post("/orders", headers=KEY)
    assert (found.status_code, found.json()["type"]) == (409, LOST)
