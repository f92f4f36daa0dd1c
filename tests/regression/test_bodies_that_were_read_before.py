"""A request whose body something in front has read is compared by what the framework keeps of it, or refused.

It waited for ever: the server sends a body once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import litestar
import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.test.client import MULTIPART_CONTENT
from django.urls import path
from litestar.middleware import DefineMiddleware
from litestar.response import Stream
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from fastdedup import ConfigError, Dedup
from fastdedup.integrations.asgi import IdempotencyMiddleware, everyone
from fastdedup.integrations.django import everyone as django_everyone
from fastdedup.integrations.django import idempotent
from fastdedup.integrations.litestar import idempotent as for_litestar
from fastdedup.integrations.starlette import idempotent as for_starlette

from ..integrations import django_project as django_project  # sets Django up
from ..integrations.desk import client
from ..integrations.django_shop import open_shop
from ..integrations.frameworks import LitestarRequest

KEY = {"idempotency-key": "k"}
Endpoint = Callable[..., Coroutine[Any, Any, Response]]


async def length(request: LitestarRequest) -> str:
    return str(len(await request.body()))


async def streamed() -> Stream:
    return Stream(iter([b"in ", b"parts"]))


def logged(
    dedup: Dedup,
    decorated: bool,
    read: Callable[[LitestarRequest], Any] = LitestarRequest.body,
    answer: Any = length,
) -> Any:
    """An application of Litestar: outside of fastdedup's a middleware reads the body, as LoggingMiddleware does."""

    def logging(app: Any) -> Any:
        async def logged(scope: Any, receive: Any, send: Any) -> None:
            await read(litestar.Request(scope, receive))
            await app(scope, receive, send)

        return logged

    guarding: Any = IdempotencyMiddleware
    handler = litestar.post("/orders")(answer)
    within: Any = [] if decorated else [DefineMiddleware(guarding, dedup=dedup, principal=everyone)]
    return litestar.Litestar(
        [for_litestar(dedup, principal=everyone)(handler) if decorated else handler],
        middleware=[logging, *within],
        openapi_config=None,
        logging_config=None,
        debug=True,
    )


async def told(request: Request, *committed: Any) -> Response:
    return Response(str(len(await request.body())))


def read_above(endpoint: Endpoint, read: Callable[[Request], Any] = Request.body) -> Starlette:
    """An application of Starlette whose endpoint has a decorator above fastdedup's, which reads the body."""

    async def reading(request: Request) -> Response:
        await read(request)
        return await endpoint(request)

    return Starlette(routes=[Route("/orders", reading, methods=["POST"])])


async def answers(app: Any, *asked: dict[str, Any]) -> list[httpx.Response]:
    async with client(app, raises=True) as visitor, asyncio.timeout(20):
        return [await visitor.post("/orders", **one) for one in asked]


@pytest.fixture
def dedup() -> Dedup:
    return Dedup("memory://", namespace="t")


@pytest.mark.parametrize("kind", ["litestar", "in litestar", "starlette"])
async def test_a_body_that_was_read_before_is_compared(kind: str, dedup: Dedup) -> None:
    decorated = read_above(for_starlette(dedup, principal=everyone)(told))
    app = decorated if kind == "starlette" else logged(dedup, kind == "litestar")
    async with dedup:
        tea = {"headers": KEY, "content": b"tea"}
        first, again, other, keyless = await answers(
            app, tea, tea, {**tea, "content": b"milk"}, {"content": b"water"}
        )
    assert (first.text, again.text, keyless.text) == ("3", "3", "5")
    assert (again.headers["idempotency-replayed"], other.status_code) == ("true", 422)


async def test_a_form_that_was_read_before_is_refused(dedup: Dedup) -> None:
    form: dict[str, Any] = {"headers": KEY, "files": {"item": (None, b"tea")}}
    async with dedup:
        (answer,) = await answers(logged(dedup, True, LitestarRequest.form), form)
        decorated = for_starlette(dedup, principal=everyone)(told)
        with pytest.raises(ConfigError, match="a decorator above"):
            await answers(read_above(decorated, Request.form), form)
    assert answer.status_code == 500
    assert "request_log_fields" in answer.text


async def test_a_form_that_was_read_before_without_a_key_is_not_compared(dedup: Dedup) -> None:
    """A response that streams listens for the client's end. It got the refusal of the body instead, and was cut."""
    form: dict[str, Any] = {"files": {"item": (None, b"tea")}}

    async def streaming(request: Request) -> Response:
        return StreamingResponse(iter(["in ", "parts"]))

    async with dedup:
        decorated = for_starlette(dedup, principal=everyone)(streaming)
        found = await answers(read_above(decorated, Request.form), form)
        found += await answers(logged(dedup, True, LitestarRequest.form, streamed), form)
    assert [answer.text for answer in found] == ["in parts"] * 2


@pytest.mark.parametrize("body", [b"tea", b""])
@pytest.mark.parametrize("is_read", [False, True])
async def test_a_body_ends_once(body: bytes, is_read: bool, dedup: Dedup) -> None:
    """An empty one that was read before ended twice, and each left a generator for the event loop to close."""
    opened: list[Any] = []
    end = {"type": "http.disconnect"}
    sent = [{"type": "http.request", "body": body, "more_body": False}, end]

    class Watched(Request):
        def stream(self) -> Any:
            opened.append(super().stream())
            return opened[-1]

    async def receive() -> Any:
        return sent.pop(0)

    async def asking(scope: Any, receive: Any, send: Any) -> None:
        seen.extend([await receive() for _ in pieces])
        assert [stream.ag_frame for stream in opened] == [None] * len(opened)
        seen.append(await receive())

    @for_starlette(dedup, principal=everyone)
    async def endpoint(request: Request) -> Any:
        return asking

    scope: Any = {"type": "http", "method": "POST", "path": "/orders", "headers": []}
    pieces: list[bytes] = [body, b""] if body else [b""]
    seen: list[Any] = []
    request = Watched(scope, receive)
    if is_read:
        await request.body()
    answer: Any = await endpoint(request)
    async with dedup:
        await answer(scope, receive, None)
    expected = [{"type": "http.request", "body": piece, "more_body": bool(piece)} for piece in pieces]
    assert seen == [*expected, end]


async def test_an_error_of_the_server_is_not_a_decorators(dedup: Dedup) -> None:
    async def receive() -> Any:
        raise RuntimeError("the transport is closed")

    scope: Any = {
        "type": "http",
        "method": "POST",
        "path": "/orders",
        "headers": [(b"idempotency-key", b"k")],
    }
    answer: Any = await for_starlette(dedup, principal=everyone)(told)(Request(scope, receive))
    async with dedup:
        with pytest.raises(RuntimeError, match="the transport is closed"):
            await answer(scope, receive, None)


def reading(get_response: Any) -> Any:
    """Middleware that reads a request as a stream: Django then has no body."""

    def middleware(request: HttpRequest) -> Any:
        request.read()
        return get_response(request)

    return middleware


def parsing(get_response: Any) -> Any:
    """Middleware that asks for the form, as CsrfViewMiddleware does: without a body Django gives an empty one."""

    def middleware(request: HttpRequest) -> Any:
        assert not request.POST
        return get_response(request)

    return middleware


@idempotent(principal=django_everyone)
def order(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


def shop_behind(redis_url: str, *middleware: Any) -> Any:
    """A Django project whose view has these middlewares in front."""
    names = [f"{__name__}.{one.__name__}" for one in middleware]
    settings = {"MIDDLEWARE": names, "ROOT_URLCONF": (path("orders", order),)}
    return open_shop(FASTDEDUP={"url": redis_url, "namespace": "t", "timeout": 5.0}, **settings)


@pytest.mark.parametrize(
    ("middleware", "kind"),
    [
        ((reading,), "application/json"),
        ((reading, parsing), "application/json"),
        ((reading, parsing), MULTIPART_CONTENT),
        ((parsing, reading), "application/json"),
    ],
)
def test_django_refuses_a_body_that_was_read_as_a_stream(
    middleware: tuple[Any, ...], kind: str, redis_url: str
) -> None:
    """All such requests were the same: another one got the response of the first."""
    with shop_behind(redis_url, *middleware), pytest.raises(ConfigError, match=r"request\.body"):
        Client(headers=KEY).post("/orders", {"item": "tea"}, content_type=kind)


def test_django_compares_an_empty_form_that_was_parsed_before(redis_url: str) -> None:
    with shop_behind(redis_url, parsing):
        answers = [Client(headers=KEY).post("/orders", {}) for _ in range(2)]
    assert [answer.headers.get("idempotency-replayed") for answer in answers] == [None, "true"]
