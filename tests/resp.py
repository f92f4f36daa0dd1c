"""A server that shakes hands as Redis does, and answers all else as the test says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import hiredis

Answer = Callable[[list[bytes], asyncio.StreamWriter], Awaitable[None] | None]

_HANDSHAKE = (b"CLIENT", b"SELECT", b"SCRIPT")


def saying(reply: bytes) -> Answer:
    """Answer each command with these bytes."""
    return lambda command, writer: writer.write(reply)


def silent(command: list[bytes], writer: asyncio.StreamWriter) -> None:
    """Answer nothing."""


@asynccontextmanager
async def resp_server(
    folder: Path, answer: Answer = silent, *, version: str = "7.0.15", shakes_hands: bool = True
) -> AsyncIterator[str]:
    """Serve on a Unix socket in `folder`; yield its URL. Every connection is closed at the end."""
    handlers: set[asyncio.Task[None]] = set()
    info = f"# Server\r\nredis_version:{version}\r\nredis_mode:standalone\r\n".encode()

    async def handle(command: list[bytes], writer: asyncio.StreamWriter) -> None:
        if not shakes_hands:
            return
        if command[0] in _HANDSHAKE:
            writer.write(b"+OK\r\n")
        elif command[0] == b"INFO":
            writer.write(b"$%d\r\n%s\r\n" % (len(info), info))
        elif (pending := answer(command, writer)) is not None:
            await pending

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        parser = hiredis.Reader()
        try:
            while data := await reader.read(65_536):
                parser.feed(data)
                while (command := parser.gets()) is not False:
                    await handle(command, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    path = folder / "resp.sock"
    server = await asyncio.start_unix_server(serve, path)
    try:
        yield f"unix://{path}"
    finally:
        server.close()
        for task in handlers:
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
