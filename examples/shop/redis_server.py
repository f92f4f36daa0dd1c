"""The demo's own redis-server: on a private Unix socket, with a file that keeps the records through a crash."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import anyio

from fastdedup import ConfigError

_STARTING = 20.0
_PAUSE = 0.02


def find_server() -> str:
    """Return the path of redis-server.

    Raises:
        ConfigError: redis-server is not installed; the message says how to install it.
    """
    for name in ("redis-server", "valkey-server"):
        path = shutil.which(name)
        if path:
            return path
    raise ConfigError(
        "the web demo starts a Redis of its own, but there is no redis-server on the PATH: "
        "apt-get install redis-server, dnf install redis, apk add redis or brew install redis"
    )


class ShopRedis:
    """One redis-server, which can be crashed and started again with its records.

    Args:
        binary: the path of redis-server.
        path: the socket's path; the server's files are in the same folder.
    """

    def __init__(self, binary: str, path: Path) -> None:
        self._binary = binary
        self._path = path
        # Mutable: the process while it runs; a lock, so that starting and stopping take turns.
        self._process: asyncio.subprocess.Process | None = None
        self._turn = anyio.Lock()

    @property
    def is_up(self) -> bool:
        """True while the server's process runs."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the server if it does not run, and return once it serves.

        Raises:
            ConfigError: the server does not start; the message ends with the server's own words.
        """
        async with self._turn:
            if not self.is_up:
                await self._start()

    async def stop(self) -> None:
        """Kill the server, as a crash of its process would. Every write that it had answered is in its file."""
        async with self._turn:
            if self._process is not None and self.is_up:
                self._process.kill()
                await self._process.wait()

    async def _start(self) -> None:
        command = [self._binary, "--port", "0", "--unixsocket", str(self._path), "--unixsocketperm", "700"]
        command += [
            "--dir",
            str(self._path.parent),
            "--save",
            "",
            "--appendonly",
            "yes",
            # With the default, everysec, a Redis whose disk is busy answers writes up to 2 s before it puts them into
            # the file. With "no" a write is there when it is answered: enough for a process that dies.
            "--appendfsync",
            "no",
            "--loglevel",
            "warning",
        ]
        log = self._path.with_suffix(".log")
        with log.open("ab") as out:
            # In a session of its own, so that Ctrl-C reaches only the parent, which stops everything in order.
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        with anyio.move_on_after(_STARTING) as scope:
            while not await self._answers():
                if not self.is_up:
                    break
                await anyio.sleep(_PAUSE)
        if scope.cancelled_caught:
            self._process.kill()
            await self._process.wait()
        if not self.is_up:
            said = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise ConfigError(f"{self._binary} did not start: {' '.join(said) or 'it gave no reason'}")

    async def _answers(self) -> bool:
        try:
            reader, writer = await asyncio.open_unix_connection(self._path)
        except OSError:
            return False
        try:
            writer.write(b"PING\r\n")
            return (
                await reader.readline() == b"+PONG\r\n"
            )  # another answer while the server still loads its file
        except OSError:
            return False
        finally:
            writer.close()
