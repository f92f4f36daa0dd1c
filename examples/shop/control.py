"""The connection between the parent and its workers, on a Unix socket: a worker sends a word, the parent answers.

It also shows a worker that its parent has ended, also by a kill: then the connection ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio

from fastdedup import ConfigError, UnavailableError

from .redis_server import ShopRedis

_TIMEOUT = 30.0


async def answer(
    redis: ShopRedis,
    on_ready: Callable[[], None],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Serve one worker's connection: `ready`, `start`, `stop`, `state`. Answers `up`, `down` or an error's text."""
    with suppress(OSError):  # the worker ended before it got the answer
        while line := await reader.readline():
            word = line.decode().strip()
            if word == "ready":
                on_ready()
            writer.write(f"{await _done(redis, word)}\n".encode())
    writer.close()


async def _done(redis: ShopRedis, word: str) -> str:
    try:
        if word == "start":
            await redis.start()
        elif word == "stop":
            await redis.stop()
    except ConfigError as error:
        return " ".join(str(error).split())
    return "up" if redis.is_up else "down"


class ControlLine:
    """A worker's side of the connection.

    Args:
        on_end: called when the parent has ended.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        # Mutable: the connection; the futures of the next answers, in order; whether the parent has ended.
        self._writer: asyncio.StreamWriter
        self._listening: asyncio.Task[None]
        self._asked: list[asyncio.Future[str]] = []
        self._ended = False

    async def open(self, path: Path) -> None:
        """Connect to the parent."""
        reader, self._writer = await asyncio.open_unix_connection(path)
        self._listening = asyncio.create_task(self._listen(reader))

    async def ask(self, word: str) -> str:
        """Return the parent's answer.

        Raises:
            UnavailableError: the parent does not answer.
        """
        if self._ended:
            raise _silent()
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._asked.append(future)
        self._writer.write(f"{word}\n".encode())
        try:
            with anyio.fail_after(_TIMEOUT):
                return await future
        except (TimeoutError, ConnectionError) as error:
            raise _silent() from error

    def close(self) -> None:
        """Close the connection; `on_end` is not called."""
        self._listening.cancel()
        self._writer.close()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):  # a parent that was killed with unread data ends the connection with an error
            while line := await reader.readline():
                future = self._asked.pop(0)
                if not future.done():
                    future.set_result(line.decode().strip())
        self._ended = True
        for future in self._asked:
            if not future.done():
                future.set_exception(ConnectionError("the line has ended"))
        self._on_end()


def _silent() -> UnavailableError:
    return UnavailableError("the demo's parent process does not answer")
