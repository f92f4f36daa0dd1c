"""A TCP proxy in front of a server's Unix socket: it swallows what passes, or resets its connections.

It knows bytes only; `tests/proxy.py` knows requests, and loses one at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

Mode = Literal["pass", "swallow", "reset"]

_LINGER_0 = struct.pack("ii", 1, 0)
"""SO_LINGER with no time left: closing sends RST."""


class Proxy:
    """Passes bytes on as `mode` says.

    pass: as they come. swallow: it accepts, reads, and passes nothing on; a connection that lost bytes
    so stays silent, as one does whose peer is gone. reset: it accepts, and resets at the first byte.
    """

    def __init__(self, target: Path) -> None:
        self.mode: Mode = "pass"
        self._target = target
        self._loop = asyncio.get_running_loop()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._tasks: set[asyncio.Task[None]] = {asyncio.create_task(self._accept())}

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._listener.close()

    async def _accept(self) -> None:
        while True:
            client, _ = await self._loop.sock_accept(self._listener)
            client.setblocking(False)
            self._tasks.add(asyncio.create_task(self._serve(client)))

    async def _serve(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        server.setblocking(False)
        pumps: list[asyncio.Task[None]] = []
        with client, server, contextlib.suppress(OSError):
            await self._loop.sock_connect(server, str(self._target))
            pumps = [asyncio.create_task(self._pump(*ends)) for ends in ((client, server), (server, client))]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
                if self.mode == "reset":
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0)

    async def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        silent = False
        while data := await self._loop.sock_recv(source, 65_536):
            silent = silent or self.mode == "swallow"
            if self.mode == "reset":
                return
            if not silent:
                await self._loop.sock_sendall(sink, data)


@asynccontextmanager
async def proxy_to(target: Path) -> AsyncIterator[Proxy]:
    """Run a proxy to a Unix socket."""
    proxy = Proxy(target)
    try:
        yield proxy
    finally:
        await proxy.aclose()
