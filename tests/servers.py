"""Real redis-servers for tests: each on a private Unix socket, killable and freezable."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

DEADLINE = 20.0


class RedisServer:
    """One redis-server process with its own folder, which `stop` removes."""

    def __init__(self, *options: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fastdedup-redis-"))
        self.socket = self.folder / "redis.sock"
        self.url = f"unix://{self.socket}?db=0"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def at(cls, folder: Path, *options: str) -> RedisServer:
        """A server in a folder that exists, with files that its options name."""
        server = object.__new__(cls)
        server.folder = folder
        server.socket = folder / "redis.sock"
        server.url = f"unix://{server.socket}?db=0"
        server._options = options
        server._process = None
        return server

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> RedisServer:
        binary = shutil.which("redis-server")
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
        command += ["--dir", str(self.folder), "--loglevel", "warning", *self._options]
        log = (self.folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._wait_until_up()
        return self

    def client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.socket), protocol=2, retry=Retry(NoBackoff(), 0))

    def kill(self) -> None:
        """End it as a crash would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(DEADLINE)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.thaw()
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait_until_up(self) -> None:
        ends = time.monotonic() + DEADLINE
        while time.monotonic() < ends:
            assert self._process is not None
            assert self._process.poll() is None, (self.folder / "log").read_text()
            try:
                with self.client() as client:
                    client.ping()
                return
            except redis.AuthenticationError:
                return
            except redis.ConnectionError:
                time.sleep(0.005)
        raise TimeoutError("redis-server did not come up")
