"""The example application behind the middleware of ASGI, WSGI and aiohttp, in each framework, for tests of all."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import cache
from typing import Any, Self

import httpx
import pytest
from werkzeug.wrappers import Request

from fastdedup import Dedup
from fastdedup.integrations import aiohttp, asgi, wsgi
from fastdedup.integrations.http.lifespan import ASGIApp, Receive, Scope, Send
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.web.request import by_header

from ..stores import TIMEOUT
from .desk import Desk, at, client, key, whole
from .frameworks import FRAMEWORKS, app_of
from .frameworks_aiohttp import aiohttp_app, hosted
from .wsgi_apps import KINDS, App, Call, Reply, call

ASGI = tuple(FRAMEWORKS)
WSGI = {f"wsgi-{name}": kind for name, kind in KINDS.items()}
FACES = (*ASGI, "aiohttp", *WSGI)
of_asgi = pytest.mark.parametrize("face", ASGI)
on_redis = pytest.mark.parametrize("url", ["redis"], indirect=True)
_LOOP, _DESK = "tests.loop", "tests.desk"


def serve(app: App, desk: Desk) -> ASGIApp:
    """Show a WSGI application to clients of ASGI; each request has a thread of its own, and the desk."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        body = await whole(receive)
        answer = await asyncio.to_thread(call, app, scope["path"], body, **_environ(scope), **{_DESK: desk})
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    return served


def _environ(scope: Scope) -> dict[str, Any]:
    """Return what a server makes of a request's head; it joins headers of one name by a comma."""
    environ: dict[str, Any] = {_LOOP: asyncio.get_running_loop()}
    for header, value in scope["headers"]:
        name = header.decode().upper().replace("-", "_")
        name = name if name.startswith("CONTENT_") else f"HTTP_{name}"
        environ[name] = (
            f"{environ[name]},{value.decode('latin-1')}" if name in environ else value.decode("latin-1")
        )
    return environ | {"method": scope["method"], "query": scope["query_string"].decode()}


def handle(call: Call) -> Reply:
    """Do the desk's work, which waits in the test's own loop."""
    name, body = call.environ["PATH_INFO"].rpartition("/")[2], call.body
    if name == "upload":
        with Request({**call.environ, "wsgi.input": io.BytesIO(body)}) as request:
            body = request.files["file"].read()
    work = call.environ[_DESK].work(name, body, call.environ)
    made = asyncio.run_coroutine_threadsafe(work, call.environ[_LOOP]).result(30)
    kind = [] if made.status == 204 else [("Content-Type", made.kind)]
    sent = made.body if isinstance(made.body, bytes) else iter(made.body)
    return Reply(made.status, [*kind, *made.headers], sent)


@cache
def wsgi_app(face: str) -> App:
    """The application of a framework of WSGI, made once in a process."""
    return WSGI[face](handle)


def on_one_of_each(test: Any) -> Any:
    """Mark what no framework and no store has a part in: for one face of ASGI, and one of WSGI, on Redis."""
    return on_redis(pytest.mark.parametrize("face", ["starlette", "wsgi-bare"])(test))


class Shop:
    """The application of one face behind its middleware; `async with` closes its gate.

    Attributes:
        app: the middleware, for clients of ASGI.
        dedup: its gate, a synchronous one behind WSGI.
    """

    def __init__(self, face: str, url: str, desk: Desk, *, gate: Any = (), **settings: Any) -> None:
        self.face = face
        self.is_async = face not in WSGI
        self._stack = AsyncExitStack()
        self.desk = desk
        self.runs = desk.runs
        make: Callable[..., Any] = Dedup if self.is_async else SyncDedup
        self.dedup = make(url, **{"namespace": "t", "timeout": TIMEOUT, **dict(gate)})
        self.app: ASGIApp
        self.behind(**settings)

    def behind(self, **settings: Any) -> None:
        """Give the middleware these settings from now on."""
        settings = {"principal": by_header("x-account"), "docs": "/idempotency", **settings}
        if self.face == "aiohttp":
            self.app = hosted(aiohttp_app(self.desk, self.dedup, **settings), self._stack)
        elif self.is_async:
            self.app = asgi.IdempotencyMiddleware(at(self.desk, app_of(self.face)), self.dedup, **settings)
        else:
            guarded = wsgi.IdempotencyMiddleware(wsgi_app(self.face), self.dedup, **settings)
            self.app = serve(guarded, self.desk)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()
        await (self.dedup.aclose() if self.is_async else asyncio.to_thread(self.dedup.close))

    async def post(self, path: str = "/orders", sent: str | None = "k", **options: Any) -> httpx.Response:
        """Send a request with a key, of the account `ann` unless another one is named."""
        return await self.request("POST", path, sent, **options)

    async def request(self, method: str, path: str, sent: str | None = "k", **options: Any) -> httpx.Response:
        headers = {**({} if sent is None else key(sent)), **options.pop("headers", {})}
        account = options.pop("account", "ann")
        return await client(self.app, x_account=account).request(method, path, headers=headers, **options)

    async def held(
        self, path: str = "/orders", **options: Any
    ) -> tuple[asyncio.Event, asyncio.Task[httpx.Response]]:
        """Send a request whose handler waits; return once it runs, with the event that lets it go on."""
        go_on = self.desk.hold()
        first = asyncio.ensure_future(self.post(path, **options))
        await self.desk.started.wait()
        return go_on, first

    def claim(self, run: int = 0) -> Any:
        """Return what a handler found as its claim."""
        module: Any = aiohttp if self.face == "aiohttp" else asgi if self.is_async else wsgi
        return module.claim_of(self.desk.scopes[run])

    async def forget(self) -> None:
        """Take the key of the first run away, as if its lease had ended."""
        forgotten = self.dedup.scoped("http").forget(self.claim().key)
        assert await forgotten if self.is_async else forgotten
