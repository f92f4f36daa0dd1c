"""Real redis-servers for tests: each on a private Unix socket, killable and freezable."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .killable import DEADLINE, Killable, until

DEBUG_OPTION = "--enable-debug-command"
"""Redis before 7.0 does not know this option, and needs none for DEBUG."""


def free_port() -> int:
    """A TCP port of this host that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@cache
def server_version(binary: str) -> tuple[int, int]:
    """Return the version of a redis-server or valkey-server, of two numbers."""
    said = subprocess.check_output([binary, "--version"], text=True)
    found = re.search(r" v=(\d+)\.(\d+)", said)
    assert found, f"{binary} --version says {said!r}"
    return int(found[1]), int(found[2])


@contextmanager
def evicting(raw: redis.Redis) -> Iterator[None]:
    """Let a server evict keys for the length of a block."""
    raw.config_set("maxmemory-policy", "allkeys-lru")
    try:
        yield
    finally:
        raw.config_set("maxmemory-policy", "noeviction")


class RedisServer(Killable):
    """One redis-server process with its own folder, which `stop` removes.

    Args:
        options: of redis-server; they win over those of `start`, which takes them as they then are.
        password: what the server asks for; it stands in `url`, and `client` knows it.
        folder: one that exists, with files that the options name; a new one by default.
        binary: the program; by default the redis-server on the PATH.
    """

    def __init__(
        self, *options: str, password: str = "", folder: Path | None = None, binary: str | None = None
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fastdedup-redis-")) if folder is None else folder
        self.socket = self.folder / "redis.sock"
        self.login = f":{quote(password, safe='')}@" if password else ""
        self.url = f"unix://{self.login}{self.socket}?db=0"
        self._password = password
        self._binary = binary
        self.env: Mapping[str, str] = {}
        """Set for the server beside the environment of this process."""
        self.options = (*(("--requirepass", password) if password else ()), *options)

    @classmethod
    def at(cls, folder: Path, *options: str) -> RedisServer:
        """A server in a folder that exists, with files that its options name."""
        return cls(*options, folder=folder)

    def start(self, *, loading: bool = False) -> RedisServer:
        """Return once it serves; with `loading`, once it answers at all."""
        binary = self._binary or shutil.which("redis-server")
        assert binary, "redis-server is not on the PATH: `make test` installs it"
        command = [
            binary,
            "--port",
            "0",
            "--unixsocket",
            str(self.socket),
            "--save",
            "",
            "--appendonly",
            "no",
        ]
        command += ["--dir", str(self.folder), "--loglevel", "warning", *self._known_options(binary)]
        log = (self.folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **self.env})
        self._wait_until_up(loading)
        return self

    def client(self) -> redis.Redis:
        return redis.Redis(
            unix_socket_path=str(self.socket),
            password=self._password or None,
            protocol=2,
            socket_timeout=60.0,  # redis-py 8 gives up after 5 s, also on a command that blocks for longer
            retry=Retry(NoBackoff(), 0),
        )

    def _known_options(self, binary: str) -> tuple[str, ...]:
        if DEBUG_OPTION not in self.options or server_version(binary) >= (7, 0):
            return self.options
        at = self.options.index(DEBUG_OPTION)
        return (*self.options[:at], *self.options[at + 2 :])

    def _wait_until_up(self, loading: bool) -> None:
        def answers() -> bool:
            assert self.alive, self.log
            with self.client() as client, suppress(redis.AuthenticationError):
                try:
                    client.ping()
                except redis.BusyLoadingError:
                    return loading
            return True

        until(answers, "redis-server comes up", deadline=DEADLINE, unless=(redis.ConnectionError,))
