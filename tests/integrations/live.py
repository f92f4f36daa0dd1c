"""Uvicorn, for what only a real server shows; and clients that choose each byte, and when to go."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from fastdedup.integrations.http.lifespan import ASGIApp, Message, Receive, Scope, Send

from ..ticks import Brisk


class Quiet(Brisk, uvicorn.Server):
    """Leaves the signals to pytest."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Live:
    """A running server.

    Attributes:
        path: its Unix socket.
        over: requests whose application has returned.
        gone: clients of which it is known that they left, while their request ran.
    """

    def __init__(self, app: ASGIApp, path: Path, http: str) -> None:
        self.path = path
        self.over = 0
        self.gone = 0
        self._app = app
        config = uvicorn.Config(
            self._watched, uds=str(path), log_config=None, http=http, lifespan="auto", interface="asgi3"
        )  # type: ignore[arg-type]
        self.server = Quiet(config)

    async def _watched(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        told = False

        async def listened() -> Message:
            nonlocal told
            message = await receive()
            if message["type"] == "http.disconnect" and not told:
                told = True
                self.gone += 1
            return message

        try:
            await self._app(scope, listened, send)
        finally:
            self.over += 1
        return None

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)

    @property
    def client(self) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(uds=str(self.path))
        return httpx.AsyncClient(transport=transport, base_url="http://shop.test", timeout=30)

    async def connect(self) -> Wire:
        return Wire(*await asyncio.open_unix_connection(str(self.path)))


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(
        self, path: str, key: str | None, body: bytes = b"", *headers: str, method: str = "POST"
    ) -> None:
        lines = [f"{method} {path} HTTP/1.1", "Host: shop.test", f"Content-Length: {len(body)}", *headers]
        if key is not None:
            lines.append(f"Idempotency-Key: {key}")
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    async def answer(self, method: str = "POST") -> tuple[int, dict[str, str], bytes]:
        """The next response on this connection."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
        status = int(head[0].split()[1])
        if method == "HEAD" or status == 204:
            return status, headers, b""
        if headers.get("transfer-encoding") == "chunked":
            return status, headers, await self._chunks()
        return status, headers, await self.reader.readexactly(int(headers["content-length"]))

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)
        return body

    def leave(self) -> None:
        """As a client whose process was killed."""
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


@asynccontextmanager
async def serving(app: ASGIApp, http: str = "httptools") -> AsyncIterator[Live]:
    """Run a server, in this event loop."""
    with tempfile.TemporaryDirectory(prefix="fastdedup-live-") as folder:
        live = Live(app, Path(folder) / "http.sock", http)
        task = asyncio.ensure_future(live.server.serve())
        try:
            while not live.server.started:
                assert not task.done(), "uvicorn did not start"
                await asyncio.sleep(0.001)
            yield live
        finally:
            live.server.should_exit = True
            await task


class Call:
    """One request to an application, whose client's every move the test makes."""

    def __init__(self, app: ASGIApp, path: str, *headers: tuple[str, str], **scope: Any) -> None:
        self.inbox: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: list[Message] = []
        self.deaf = False
        """True: the server raises when something is sent, as servers of spec 2.4 do once the client is gone."""
        self.scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in (("host", "shop.test"), *headers)],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            **scope,
        }
        self._app = app

    def start(self, body: bytes | None = b"") -> asyncio.Task[None]:
        if body is not None:
            self.inbox.put_nowait({"type": "http.request", "body": body, "more_body": False})
        self.task = asyncio.ensure_future(self._run())
        return self.task

    async def _run(self) -> None:
        await self._app(self.scope, self.inbox.get, self._send)

    async def _send(self, message: Message) -> None:
        if self.deaf:
            raise OSError("the client is gone")
        self.sent.append(message)

    def leave(self) -> None:
        self.inbox.put_nowait({"type": "http.disconnect"})

    @property
    def status(self) -> int | None:
        return next((one["status"] for one in self.sent if "status" in one), None)

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(next((one["headers"] for one in self.sent if "status" in one), ()))

    @property
    def body(self) -> bytes:
        return b"".join(one.get("body", b"") for one in self.sent)
