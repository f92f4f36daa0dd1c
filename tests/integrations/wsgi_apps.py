"""The same handler as a bare WSGI application, under Flask and under Django; a server for those, and a shop."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import flask
import orjson
import pytest

from fastdedup.integrations.wsgi import IdempotencyMiddleware, by_header
from fastdedup.sync import Dedup

from ..stores import TIMEOUT

Environ = dict[str, Any]
App = Callable[..., Iterable[bytes]]
Headers = list[tuple[str, str]]
MARKS = ("idempotency-replayed", "idempotency-degraded", "idempotency-stored")


@dataclass
class Call:
    """What a handler is given."""

    environ: Environ
    body: bytes


@dataclass
class Reply:
    """What it returns; a body that is no bytes is streamed."""

    status: int = 201
    headers: Headers = field(default_factory=lambda: [("Content-Type", "application/json")])
    body: bytes | Iterable[bytes] = b"{}"


Handler = Callable[[Call], Reply]


def bare(handler: Handler) -> App:
    """An application without a framework; that it conforms, and what it is given, is checked."""

    def app(environ: Environ, start_response: Any) -> Iterable[bytes]:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        reply = handler(Call(environ, environ["wsgi.input"].read(length) if length else b""))
        start_response(f"{reply.status} As It Is", reply.headers)
        return [reply.body] if isinstance(reply.body, bytes) else reply.body

    return validator(app)


def under_flask(handler: Handler) -> App:
    app = flask.Flask("shop")

    @app.route("/", defaults={"path": ""}, methods=["GET", "POST", "PATCH", "PUT"])
    @app.route("/<path:path>", methods=["GET", "POST", "PATCH", "PUT"])
    def view(path: str) -> flask.Response:
        reply = handler(Call(flask.request.environ, flask.request.get_data()))
        response = flask.Response(reply.body, reply.status)
        response.headers.clear()
        for name, value in reply.headers:
            response.headers.add(name, value)
        return response

    return app.wsgi_app


def under_django(handler: Handler) -> App:
    from .wsgi_django import application  # sets Django up

    return application(handler)


KINDS = {"bare": bare, "flask": under_flask, "django": under_django}


@dataclass
class Answer:
    """What a client got."""

    status: int
    reason: str
    headers: Headers
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)

    @property
    def fields(self) -> Headers:
        """Its headers, less what this package says of it."""
        return [(name.lower(), value) for name, value in self.headers if name.lower() not in MARKS]

    @property
    def marks(self) -> set[str]:
        return {name.lower() for name, _ in self.headers} & set(MARKS)

    @property
    def problem(self) -> str:
        """Which problem it is."""
        assert self.header("content-type") == "application/problem+json", self
        facts = orjson.loads(self.body)
        assert facts["status"] == self.status
        return str(facts["type"].rpartition(":")[2])


class Server:
    """What is between a client and an application: begins a response once, and closes what it was given."""

    def __init__(self, app: App) -> None:
        self._app = app
        # Mutable: of the response that is being sent.
        self.line = ""
        self.headers: Headers = []
        self.sent: list[bytes] = []

    def start_response(self, status: str, headers: Headers, exc_info: Any = None) -> Callable[[bytes], None]:
        if exc_info is not None and self.sent:
            raise exc_info[1].with_traceback(exc_info[2])
        assert not self.line or exc_info is not None, "the response was begun twice"
        self.line, self.headers = status, headers
        return self.sent.append

    def serve(self, environ: Environ) -> Iterator[bytes]:
        """Yield what is sent, as it is."""
        body = self._app(environ, self.start_response)
        with closing(body) if hasattr(body, "close") else nullcontext():  # type: ignore[type-var]
            for chunk in body:
                if chunk:
                    self.sent.append(chunk)
                    yield chunk

    def answer(self) -> Answer:
        code, _, reason = self.line.partition(" ")
        return Answer(int(code), reason, self.headers, b"".join(self.sent))


def environ_of(
    path: str = "/orders",
    body: bytes = b"",
    *,
    key: str | None = None,
    method: str = "POST",
    query: str = "",
    **more: Any,
) -> Environ:
    """Return a request; `more` are entries of the environ, None to leave one out."""
    environ: Environ = {"REQUEST_METHOD": method, "PATH_INFO": path.encode().decode("latin-1")}
    environ |= {"QUERY_STRING": query, "wsgi.input": io.BytesIO(body), "wsgi.errors": sys.stderr}
    environ |= {"CONTENT_LENGTH": str(len(body)), "CONTENT_TYPE": "application/json"}
    environ |= {} if key is None else {"HTTP_IDEMPOTENCY_KEY": key}
    environ |= {"HTTP_X_API_KEY": "ada", "REMOTE_ADDR": "127.0.0.1", "SCRIPT_NAME": ""}
    setup_testing_defaults(environ)
    environ |= more
    return {name: value for name, value in environ.items() if value is not None}


def call(app: App, path: str = "/orders", body: bytes = b"", *, checked: bool = True, **more: Any) -> Answer:
    """Send a request, and return what it is answered; `checked`, whether both conform."""
    server = Server(validator(app) if checked else app)
    for _ in server.serve(environ_of(path, body, **more)):
        pass
    return server.answer()


# A handler behind the middleware: what it was asked, and what clients were answered


DEADLINE = 20.0
STORES = ("memory", "redis")


def gate(request: pytest.FixtureRequest, **settings: Any) -> Dedup:
    """Return a gate on the store that a fixture is asked for."""
    url = "memory://" if request.param == "memory" else request.getfixturevalue("redis_url")
    return Dedup(url, **{"namespace": "t", "timeout": TIMEOUT, **settings})


class Shop:
    """An application that counts its runs; `answers` says what it replies, a `Reply` for each run."""

    def __init__(self, kind: str, dedup: Dedup, **settings: Any) -> None:
        self.kind = kind
        self.dedup = dedup
        self.calls: list[Call] = []
        self.handler: Handler = self.numbered
        settings = {"principal": by_header("x-api-key"), **settings}
        self.app: App = IdempotencyMiddleware(KINDS[kind](self._handle), dedup, **settings)

    @property
    def runs(self) -> int:
        return len(self.calls)

    def _handle(self, call: Call) -> Reply:
        self.calls.append(call)
        return self.handler(call)

    def numbered(self, call: Call) -> Reply:
        """Tell runs apart."""
        return Reply(body=b'{"order": %d}' % self.runs)

    def replies(self, *replies: Reply) -> None:
        """Let the next runs reply this."""
        rest = iter(replies)
        self.handler = lambda call: next(rest)

    def post(self, body: bytes = b"", key: str | None = "k", **more: Any) -> Answer:
        return call(self.app, more.pop("path", "/orders"), body, key=key, **more)

    @contextmanager
    def at_work(self, **more: Any) -> Iterator[tuple[threading.Event, Future[Answer]]]:
        """Around what happens while the first run is at work; setting the event lets it go on."""
        working, go = threading.Event(), threading.Event()

        def handler(call: Call) -> Reply:
            working.set()
            assert go.wait(DEADLINE)
            return self.numbered(call)

        self.handler = handler
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(self.post, **more)
            try:
                assert working.wait(DEADLINE)
                yield go, first
            finally:
                go.set()
