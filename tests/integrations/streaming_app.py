"""Responses that clients cut short, in each framework: `wsgi` is for gunicorn, `asgi` for uvicorn.

`POST /<framework>/<kind>` answers with a response of one of the `KINDS`. `FASTDEDUP_URL` names the Redis.
"""

# No `from __future__ import annotations` here: FastAPI reads the annotations of handlers made in a function.

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Annotated, Any

import flask
from django.http import HttpRequest, StreamingHttpResponse
from django.test import override_settings
from django.urls import path
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import StreamingResponse
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from fastdedup import Claim, Dedup
from fastdedup.integrations import asgi as asgi_gate
from fastdedup.integrations import wsgi as wsgi_gate
from fastdedup.integrations.fastapi import Claimed, Idempotency
from fastdedup.integrations.fastapi import everyone as anybody
from fastdedup.integrations.flask import FastDedup, idempotent
from fastdedup.integrations.http.lifespan import ASGIApp, Receive, Scope, Send
from fastdedup.sync import Dedup as SyncDedup

from . import django_project as django_project  # sets Django up

URL = os.environ["FASTDEDUP_URL"]
WAIT = 5.0
"""Seconds that a retry waits until the first request is over."""
PIECE = b"x" * 65_536
PIECES = 64
"""4 MiB: more than is kept, and more than a socket takes that nobody reads."""
LINES = b'{"n": 1}\n' * 3
KINDS: dict[str, dict[str, str]] = {
    "events": {"Content-Type": "text/event-stream"},
    "file": {"Content-Type": "text/csv", "Content-Length": str(len(PIECE) * PIECES)},
    "told": {"Content-Type": "application/x-ndjson", "Content-Length": str(len(LINES))},
}
"""The headers of a stream, of a large file, and of a stream that tells its length."""
runs: Counter[str] = Counter()


def pieces(name: str, kind: str) -> Iterator[tuple[bytes, float]]:
    """Yield the pieces of a body, each with the seconds after it."""
    runs[name + kind] += 1
    match kind:
        case "events":  # the first run goes on until its client leaves
            for at in range(20_000 if runs[name + kind] == 1 else 3):
                yield b"data: %d\n\n" % at, 0.001
        case "file":
            for _ in range(PIECES):
                yield PIECE, 0.0
        case "told":  # goes on after its last byte
            yield LINES, 20.0


def blocking(name: str, kind: str) -> Iterator[bytes]:
    for piece, seconds in pieces(name, kind):
        yield piece
        time.sleep(seconds)


async def awaited(name: str, kind: str) -> AsyncIterator[bytes]:
    for piece, seconds in pieces(name, kind):
        yield piece
        await asyncio.sleep(seconds)


# Under WSGI


def behind_middleware() -> Any:
    """An application without a framework, behind the middleware."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        kind = environ["PATH_INFO"].strip("/")
        start_response("200 OK", list(KINDS[kind].items()))
        return blocking("bare", kind)

    dedup = SyncDedup(URL, namespace="bare")
    return wsgi_gate.IdempotencyMiddleware(app, dedup, principal=wsgi_gate.everyone, wait=WAIT)


def under_flask() -> flask.Flask:
    app = flask.Flask("streams")
    FastDedup(app, SyncDedup(URL, namespace="flask"), principal=wsgi_gate.everyone, wait=WAIT)

    @app.post("/<kind>")
    @idempotent()
    def view(kind: str) -> flask.Response:
        return flask.Response(blocking("flask", kind), headers=KINDS[kind])

    return app


# Django, under both


def view(request: HttpRequest, kind: str) -> StreamingHttpResponse:
    return StreamingHttpResponse(blocking("django", kind), headers=KINDS[kind])


async def async_view(request: HttpRequest, kind: str) -> StreamingHttpResponse:
    return StreamingHttpResponse(awaited("django", kind), headers=KINDS[kind])


urlpatterns = [path("sync/<kind>", view), path("async/<kind>", async_view)]
_DJANGO = "fastdedup.integrations.django"
override_settings(
    ROOT_URLCONF=__name__,
    FASTDEDUP={"url": URL, "namespace": "django"},
    FASTDEDUP_HTTP={"principal": f"{_DJANGO}.everyone", "wait": WAIT},
    MIDDLEWARE=[f"{_DJANGO}.middleware.IdempotencyMiddleware"],
).enable()


def under_django(kind: str) -> Any:
    from django.core.handlers import asgi, wsgi

    return wsgi.WSGIHandler() if kind == "wsgi" else asgi.ASGIHandler()


# Under ASGI


def starlette() -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["path"].rpartition("/")[2]
        await StreamingResponse(awaited("starlette", kind), headers=KINDS[kind])(scope, receive, send)

    return asgi_gate.IdempotencyMiddleware(
        app, Dedup(URL, namespace="starlette"), principal=asgi_gate.everyone, wait=WAIT
    )


def fastapi() -> ASGIApp:
    app = FastAPI()
    Idempotency(app, Dedup(URL, namespace="fastapi"))

    @app.post("/fastapi/{kind}")
    async def view(
        request: Request, kind: str, claim: Annotated[Claim, Claimed(principal=anybody, wait=WAIT)]
    ) -> StreamingResponse:
        return StreamingResponse(awaited("fastapi", kind), headers=KINDS[kind])

    return app


wsgi = DispatcherMiddleware(
    flask.Flask("nothing"),
    {"/bare": behind_middleware(), "/flask": under_flask(), "/django": under_django("wsgi")},
)
_asgi: dict[str, ASGIApp] = {
    "starlette": starlette(),
    "fastapi": fastapi(),
    "django": under_django("asgi"),
}


async def asgi(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve by the framework that a path names."""
    _, name, rest = scope["path"].split("/", 2)
    if name == "django":
        scope = {**scope, "path": f"/{rest}"}
    await _asgi[name](scope, receive, send)
