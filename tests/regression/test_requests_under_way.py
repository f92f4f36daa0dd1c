"""A request that is under way: its renewals end, its guards know each other, and its body has one limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import flask
import pytest
from asgiref.sync import async_to_sync
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, override_settings
from django.test import Client as DjangoClient
from django.urls import path
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from werkzeug.test import Client

from fastdedup import Dedup
from fastdedup.integrations import asgi, starlette, wsgi
from fastdedup.integrations import flask as for_flask
from fastdedup.integrations.asgi import IdempotencyMiddleware, everyone
from fastdedup.integrations.django import everyone as django_everyone
from fastdedup.integrations.django import idempotent, one_time_form
from fastdedup.integrations.django.tokens import token_for
from fastdedup.integrations.http import settling
from fastdedup.integrations.http.lifespan import Message, Receive, Scope, Send
from fastdedup.sync import Dedup as SyncDedup

from ..integrations import django_project as django_project  # sets Django up
from ..integrations.desk import behind
from ..integrations.django_inside import APIView, NinjaAPI, drf, ninja
from ..integrations.django_shop import behind_middleware
from ..servers import RedisServer

# The renewal of a web request's claim holds the claim itself, so each end of a request must stop it.
# Otherwise a key whose request is over would be renewed until its process ends.


START: Message = {"type": "http.response.start", "status": 201, "headers": []}
SCOPE: Scope = {
    "type": "http",
    "method": "POST",
    "path": "/orders",
    "query_string": b"",
    "headers": [(b"idempotency-key", b"k")],
}


def cancel_soon() -> None:
    """Cancel the request in the loop's next turn: the handler has returned by then, and its end is being settled."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(task.cancel)


async def answers(send: Send) -> None:
    await send(START)
    await send({"type": "http.response.body", "body": b"done"})


async def is_cancelled_while_its_response_is_stored(send: Send) -> None:
    cancel_soon()
    await answers(send)


async def is_cancelled_while_a_part_of_its_response_is_settled(send: Send) -> None:
    await send(START)
    await send({"type": "http.response.body", "body": b"too large to be kept", "more_body": True})
    cancel_soon()


async def raises(send: Send) -> None:
    raise LookupError


async def is_silent(send: Send) -> None:
    pass


async def still_renewed(url: str, ending: Callable[[Send], Any]) -> bool:
    """Run a request that ends in this way, and return whether its claim would be renewed after its end."""
    waited: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        waited.append(renewals.waits)
        await ending(send)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        pass

    async with Dedup(url, namespace=f"renewed-{ending.__name__[:40]}", lease=9.0, timeout=0.2) as dedup:
        renewals = dedup.gate.connection.renewals.of(9.0)
        guarded = IdempotencyMiddleware(app, dedup, principal=everyone, max_response=8, unstored="release")
        with suppress(LookupError, asyncio.CancelledError):
            await asyncio.create_task(guarded({**SCOPE}, receive, send))
        assert waited == [True]
        return renewals.waits


@pytest.mark.parametrize(
    "ending",
    [
        answers,
        is_cancelled_while_its_response_is_stored,
        is_cancelled_while_a_part_of_its_response_is_settled,
        raises,
        is_silent,
    ],
)
async def test_no_request_is_renewed_after_its_end(redis_url: str, ending: Callable[[Send], Any]) -> None:
    assert not await still_renewed(redis_url, ending)


async def test_no_request_is_renewed_after_a_response_that_could_not_be_stored(
    own_redis: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settling, "HOLD", 0.05)

    async def loses_redis(send: Send) -> None:
        own_redis.kill()
        await answers(send)

    assert not await still_renewed(own_redis.url, loses_redis)


# Two guards around one handler locked each other out: the inner one met the outer one's claim, 409, for
# ever.


KEY = {"Idempotency-Key": "k"}


async def made(request: Request) -> PlainTextResponse:
    return PlainTextResponse("made")


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("made")


GUARD_URLS = (path("orders", view),)


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
    dedup = Dedup(redis_url, namespace="t")
    with a_django(redis_url):
        async with behind(dedup, inner(dedup), routes=["/orders"]) as client:
            client.base_url = "http://testserver"
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
    return behind_middleware(redis_url, {"routes": ["/orders"]}, ROOT_URLCONF=GUARD_URLS)


# Django's DATA_UPLOAD_MAX_MEMORY_SIZE lowered `max_request` in silence, and a one-time form had no limit at
# all.


MIB = 1024 * 1024
Post = Callable[..., Any]
RUNS: list[int] = []


def upload(request: HttpRequest) -> HttpResponse:
    RUNS.append(request.FILES["file"].size)
    return HttpResponse(f"{RUNS}")


def unread(request: HttpRequest) -> HttpResponse:
    RUNS.append(0)
    return HttpResponse(f"{RUNS}")


def read(request: HttpRequest) -> HttpResponse:
    RUNS.append(len(request.body))
    return HttpResponse(f"{RUNS}")


def streamed(request: HttpRequest) -> HttpResponse:
    RUNS.append(len(request.read()))
    return HttpResponse(f"{RUNS}")


@one_time_form
def small_form(request: HttpRequest) -> HttpResponse:
    return HttpResponse(token_for(request)) if request.method == "GET" else upload(request)


@one_time_form(max_request=20 * MIB)
def large_form(request: HttpRequest) -> HttpResponse:
    return HttpResponse(token_for(request)) if request.method == "GET" else upload(request)


class DrfUpload(APIView):
    authentication_classes = ()

    @drf.idempotent(principal=django_everyone, max_request=20 * MIB)
    def post(self, request: Any) -> Any:
        return upload(request)


ninja_api = NinjaAPI()


@ninja_api.post("/upload")
@ninja.idempotent(principal=django_everyone, max_request=20 * MIB)
def ninja_upload(request: HttpRequest) -> Any:
    return upload(request)


VIEWS = {"upload": upload, "unread": unread, "read": read, "streamed": streamed}
LIMIT_URLS = (
    path("drf/upload", DrfUpload.as_view()),
    path("ninja/", ninja_api.urls),
    path("small", small_form),
    path("large", large_form),
    *(path(f"middleware/{name}", view) for name, view in VIEWS.items()),
    *(
        path(f"decorator/{name}", idempotent(principal=django_everyone, max_request=20 * MIB)(view))
        for name, view in VIEWS.items()
    ),
)


@pytest.fixture(autouse=True)
def _shop() -> Iterator[None]:
    RUNS.clear()
    rules = {
        "routes": ["/middleware/*"],
        "principal": django_everyone,
        "max_request": 20 * MIB,
        "subject": django_everyone,
    }
    with (
        override_settings(
            ROOT_URLCONF=LIMIT_URLS,
            MIDDLEWARE=["fastdedup.integrations.django.IdempotencyMiddleware"],
            FASTDEDUP={"url": "memory://", "namespace": "t", "timeout": 5.0},
            FASTDEDUP_HTTP=rules,
            REST_FRAMEWORK={"UNAUTHENTICATED_USER": None},
        ),
        override_settings(INSTALLED_APPS=["fastdedup.integrations.django"]),
    ):
        yield


@pytest.fixture(params=["wsgi", "asgi"])
def post(request: pytest.FixtureRequest) -> Post:
    if request.param == "wsgi":
        return DjangoClient().post

    async def by_asgi(*args: Any, **given: Any) -> Any:
        return await AsyncClient().post(*args, **given)

    return async_to_sync(by_asgi)


def photo(size: int) -> SimpleUploadedFile:
    return SimpleUploadedFile("photo.jpg", b"x" * size)


@pytest.mark.parametrize("face", ["middleware", "decorator", "drf", "ninja"])
def test_a_file_over_djangos_limit_is_taken_and_replayed(post: Post, face: str) -> None:
    """Django does not count files: without a key the same request passes."""
    url = f"/{face}/upload"
    first, again = (post(url, {"file": photo(3 * MIB)}, headers=KEY) for _ in range(2))
    assert (first.status_code, first.content) == (200, f"[{3 * MIB}]".encode())
    assert (again.status_code, again.content) == (200, first.content)
    other = post(url, {"file": photo(3 * MIB + 1)}, headers=KEY)
    assert other.status_code == 422


@pytest.mark.parametrize("face", ["middleware", "decorator"])
@pytest.mark.parametrize(("view", "status"), [("unread", 200), ("streamed", 200), ("read", 400)])
def test_a_body_over_djangos_limit_meets_what_it_meets_without_a_key(
    post: Post, face: str, view: str, status: int
) -> None:
    body = b"x" * 3 * MIB
    url, kind = f"/{face}/{view}", "application/json"
    assert post(url, body, content_type=kind).status_code == status
    assert post(url, body, content_type=kind, headers=KEY).status_code == status


@pytest.mark.parametrize("face", ["middleware", "decorator"])
def test_a_body_over_the_gates_limit_is_refused(post: Post, face: str) -> None:
    url = f"/{face}/unread"
    assert post(url, b"x" * (20 * MIB + 1), content_type="text/plain", headers=KEY).status_code == 413
    assert not RUNS


def test_a_one_time_form_has_the_gates_limit(post: Post) -> None:
    client = DjangoClient()

    def sent(url: str, size: int) -> int:
        token = client.get(url).content.decode()
        return int(post(url, {"one_time_token": token, "file": photo(size)}).status_code)

    assert (sent("/small", 2 * MIB), RUNS) == (413, [])
    assert (sent("/small", 1000), RUNS) == (200, [1000])
    assert (sent("/large", 10 * MIB), RUNS) == (200, [1000, 10 * MIB])
