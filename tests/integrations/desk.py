"""The work that the example applications do, whatever framework serves it: a `Desk` counts, waits and answers.

It is in the ASGI scope of each request (`at`), so that one application serves all tests.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import Response

from fastdedup import Dedup
from fastdedup.integrations.asgi import IdempotencyMiddleware, everyone
from fastdedup.integrations.http.lifespan import ASGIApp, Receive, Scope, Send

BIG = 300 * 1024
"""Bytes: more than the 256 KiB that are kept by default."""


class Boom(Exception):
    """What the handler at /raising raises."""


@dataclass
class Made:
    """What a handler answers: a framework makes its own kind of response of it."""

    status: int
    body: bytes | Sequence[bytes]
    headers: Sequence[tuple[str, str]] = ()
    kind: str = "application/json"


class Desk:
    """Counts the runs of each handler; lets them wait for a test, and a test wait for them."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.cancelled: Counter[str] = Counter()
        self.after: Counter[str] = Counter()
        """Background tasks that have run."""
        self.started = asyncio.Event()
        self.gate: asyncio.Event | None = None
        """Handlers wait for it, where it is set."""
        self.thread_gate: threading.Event | None = None
        self.scopes: list[Any] = []

    def hold(self) -> asyncio.Event:
        """From now on handlers wait for the event that is returned."""
        self.started.clear()
        self.gate = asyncio.Event()
        return self.gate

    async def work(self, name: str, body: bytes = b"", scope: Any = None) -> Made:
        self.runs[name] += 1
        self.scopes.append(scope)
        self.started.set()
        try:
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled[name] += 1
            raise
        self.ended[name] += 1
        return self.made(name, body)

    def work_in_thread(self, name: str, body: bytes = b"") -> Made:
        self.runs[name] += 1
        if self.thread_gate is not None:
            assert self.thread_gate.wait(30)
        self.ended[name] += 1
        return self.made(name, body)

    def made(self, name: str, body: bytes) -> Made:
        run = str(self.runs[name])
        seen = [("x-run", run)]
        match name:
            case "failing":
                return Made(500, b'{"oops": %s}' % run.encode(), seen)
            case "raising":
                raise Boom(run)
            case "gone":
                return Made(404, b'{"no": "such thing"}', seen)
            case "conflict":
                return Made(409, b'{"not": "now"}', seen)
            case "redirect":
                return Made(303, b"", [*seen, ("location", "/orders/1")])
            case "cookie":
                return Made(200, b"{}", [*seen, ("set-cookie", "session=s3cret"), ("set-cookie", "b=2")])
            case "events":
                return Made(200, [b"data: %d\n\n" % at for at in range(3)], seen, "text/event-stream")
            case "chunks":
                return Made(200, [b"one,", b"two,", b"three"], seen, "text/csv")
            case "big":
                return Made(201, b"x" * BIG, [*seen, ("location", "/things/1")], "text/plain")
            case "empty":
                return Made(204, b"", seen)
            case _:
                echo = b'{"run": %s, "size": %d, "sum": "%s"}'
                return Made(201, echo % (run.encode(), len(body), sha256(body).hexdigest().encode()), seen)


async def pieces(body: bytes | Sequence[bytes]) -> AsyncIterator[bytes]:
    """A streamed body."""
    for piece in [body] if isinstance(body, bytes) else body:
        yield piece


async def whole(receive: Receive) -> bytes:
    """Return a request's body."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


def at(desk: Desk, app: ASGIApp) -> ASGIApp:
    """The application, with the desk in each request's scope."""

    async def with_desk(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "desk": desk}, receive, send)

    return with_desk


def client(app: ASGIApp, raises: bool = False, root_path: str = "", **headers: str) -> httpx.AsyncClient:
    """A client that calls the application itself. `raises`: an error without a handler is raised, not answered."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=raises, root_path=root_path)
    return httpx.AsyncClient(
        transport=transport,
        base_url="http://shop.test",
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )


@asynccontextmanager
async def behind(dedup: Dedup, app: ASGIApp, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Open a gate, and yield a client of the application behind its middleware, where everyone shares keys."""
    guarded = IdempotencyMiddleware(app, dedup, **{"principal": everyone, **settings})
    async with dedup, client(guarded, raises=True) as visitor:
        yield visitor


PROBLEM = "urn:fastdedup:problem:"


def key(value: str) -> dict[str, str]:
    return {"idempotency-key": value}


def problem(response: httpx.Response, name: str, status: int) -> dict[str, Any]:
    """The body of a problem, once it is seen to be this one."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert (body["type"], body["status"]) == (PROBLEM + name, status)
    assert body["title"]
    assert body["detail"]
    return body


async def enveloping(request: Request, call_next: Any) -> Response:
    """Put each response into an envelope: what `BaseHTTPMiddleware` takes for `dispatch`."""
    answer = await call_next(request)
    body = b"".join([part async for part in answer.body_iterator])
    enveloped = Response(b"<%b>" % body, answer.status_code, media_type=answer.headers["content-type"])
    enveloped.headers.append("x-enveloped", answer.headers.get("x-enveloped", "") + "once")
    enveloped.set_cookie("envelope", "new")
    return enveloped
