"""A response is replayed as it was sent, and kept only if it is whole, its own and still recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPConnection
from typing import Any, NamedTuple

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
from fastdedup.integrations.django import everyone, idempotent
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.web.response import HeaderFilter

from ..integrations import django_project as django_project  # sets Django up
from ..integrations.desk import behind
from ..integrations.django_shop import behind_middleware, open_shop
from ..integrations.live import serving
from ..integrations.test_wsgi_server import running, wsgiref_server
from ..integrations.wsgi_apps import call

# A replay has the first response's status line, header names and kind, and none of its credentials. Replays
# said `201 Created` for `201 CREATED` and had lower-case names; Django's were no redirects, whose `url` a
# test client follows; and `Authorization` and `WWW-Authenticate` came again.


KEY = {"Idempotency-Key": "k"}
SECRETS = {"Authorization": "Bearer s3cret", "WWW-Authenticate": "Bearer", "Authentication-Info": "qop=auth"}


# WSGI, under a real server


def test_a_wsgi_replay_has_the_status_line_and_header_names_of_the_first(redis_url: str) -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("201 CREATED", [("Content-Type", "text/plain"), ("X-OrderID", "7"), *SECRETS.items()])
        return [b"made"]

    with (
        SyncDedup(redis_url, namespace="t") as dedup,
        running(wsgiref_server, wsgi.IdempotencyMiddleware(app, dedup, principal=wsgi.everyone)) as port,
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
    async with behind(Dedup(redis_url, namespace="t"), Starlette()) as http:
        replay = await http.post("http://127.0.0.1/", headers=KEY)
    assert (b"x-orderid", b"7") in replay.headers.raw


async def test_an_asgi_replay_has_no_credentials(redis_url: str) -> None:
    async def order(request: Any) -> PlainTextResponse:
        return PlainTextResponse("made", headers={**SECRETS, "X-Order": "7"})

    app = Starlette(routes=[Route("/", order, methods=["POST"])])
    async with behind(Dedup(redis_url, namespace="t"), app, keep_headers=["x-order", *SECRETS]) as http:
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
    with behind_middleware(redis_url, ROOT_URLCONF=REPLAYED_URLS):
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

    shop = Starlette(routes=[Route("/orders", order, methods=["POST"])])
    async with behind(Dedup(redis_url, namespace="t"), shop) as client:
        first, again = [await client.post("/orders", headers=KEY) for _ in range(2)]
    assert (first.headers["x-hop"], first.headers["x-end"]) == ("1", "3")
    assert "x-hop" not in again.headers
    assert again.headers["x-end"] == "3"


# One handler behind each of the three middlewares


class Reply(NamedTuple):
    """What a handler returns."""

    body: bytes
    status: int = 201
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "text/plain"),)


Work = Callable[[redis.Redis], Reply]
"""A handler, which is given a client of its claims' Redis."""
Post = Callable[[Work, int], list[Any]]


def behind_asgi(raw: redis.Redis, url: str, work: Work, times: int) -> list[Any]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        reply = work(raw)
        headers = [(name.encode(), value.encode()) for name, value in reply.headers]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})

    async def ask() -> list[Any]:
        async with behind(Dedup(url, namespace="t"), app) as client:
            return [await client.post("/orders", headers=KEY) for _ in range(times)]

    return asyncio.run(ask())


def behind_wsgi(raw: redis.Redis, url: str, work: Work, times: int) -> list[Any]:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        reply = work(raw)
        start_response(f"{reply.status} Made", list(reply.headers))
        return [reply.body]

    with SyncDedup(url, namespace="t") as dedup:
        transport = httpx.WSGITransport(wsgi.IdempotencyMiddleware(app, dedup, principal=wsgi.everyone))
        with httpx.Client(transport=transport, base_url="http://shop.test") as client:
            return [client.post("/orders", headers=KEY) for _ in range(times)]


def behind_django(raw: redis.Redis, url: str, work: Work, times: int) -> list[Any]:
    @idempotent(principal=everyone)
    def view(request: HttpRequest) -> HttpResponse:
        reply = work(raw)
        return HttpResponse(reply.body, status=reply.status, headers=dict(reply.headers))

    urls = (path("orders", view),)
    with open_shop(ROOT_URLCONF=urls, FASTDEDUP={"url": url, "namespace": "t", "timeout": 5.0}):
        return [Client().post("/orders", headers=KEY) for _ in range(times)]


@pytest.fixture(params=[behind_asgi, behind_wsgi, behind_django])
def post(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Post]:
    """Sends a request several times to a handler, and returns the responses."""
    with redis.Redis.from_url(redis_url) as raw:
        yield partial(request.param, raw, redis_url)


def test_only_a_whole_response_is_kept(post: Post) -> None:
    """A response shorter than its own Content-Length was stored, and every retry got the broken one again."""
    bodies = [b"", b"half", b"0123456789", b"never made"]
    headers = (("Content-Length", "10"), ("Content-Type", "text/plain"))
    found = post(lambda raw: Reply(bodies.pop(0), headers=headers), 4)
    assert [each.content for each in found] == [b"", b"half", b"0123456789", b"0123456789"]
    assert found[3].headers["idempotency-replayed"] == "true"


def test_a_response_whose_key_was_overwritten_is_sent_and_marked_as_not_stored(post: Post) -> None:
    """It became a 500 under ASGI, though its handler had run."""

    def work(raw: redis.Redis) -> Reply:
        for key in raw.scan_iter():
            raw.set(key, "another program's", ex=60)
        return Reply(b"made")

    (found,) = post(work, 1)
    assert (found.status_code, found.content, found.headers["idempotency-stored"]) == (201, b"made", "false")


def test_a_failed_response_whose_claim_was_lost_is_409(post: Post) -> None:
    """A 5xx was sent under ASGI and Django, and not under WSGI."""

    def work(raw: redis.Redis) -> Reply:
        raw.flushdb()
        return Reply(b"failed", 503)

    (found,) = post(work, 1)
    assert (found.status_code, found.json()["type"]) == (409, "urn:fastdedup:problem:claim-lost")


# A precondition that failed was kept for an hour: a client that had read the new version, and sent the same change
# with its number in `If-Match`, got the old 412 again. The fingerprint has neither that header nor `Content-Type`.


async def test_a_corrected_header_is_not_answered_with_the_first_refusal(redis_url: str) -> None:
    version, changes = 2, list[bytes]()

    async def change(request: Request) -> PlainTextResponse:
        if request.headers.get("content-type") != "application/json":
            return PlainTextResponse("send JSON", 415)
        if request.headers.get("if-match") is None:
            return PlainTextResponse("name the version", 428)
        if request.headers["if-match"] != f'"{version}"':
            return PlainTextResponse("not the present version", 412)
        changes.append(await request.body())
        return PlainTextResponse("changed")

    inner = Starlette(routes=[Route("/book", change, methods=["PATCH"])])
    app = asgi.IdempotencyMiddleware(inner, Dedup(redis_url, namespace="t"), principal=asgi.everyone)
    json = {**KEY, "Content-Type": "application/json"}
    tries = [
        {**KEY, "Content-Type": "text/plain"},
        json,
        {**json, "If-Match": '"1"'},
        {**json, "If-Match": '"2"'},
    ]
    async with serving(app) as live, live.client as client:
        answers = [
            await client.patch("/book", content=b"{}", headers=headers) for headers in (*tries, tries[-1])
        ]
    assert [answer.status_code for answer in answers] == [415, 428, 412, 200, 200]
    assert answers[-1].headers["idempotency-replayed"] == "true"
    assert changes == [b"{}"]
