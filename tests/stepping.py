"""A redis-server whose clock a test sets back while it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from .servers import RedisServer

SOURCE = Path(__file__).with_suffix(".c")
OFFSET, LIBRARY = "offset", "stepping.so"


class SteppingServer(RedisServer):
    """Its own gettimeofday is preloaded: the tests' machine keeps its time."""

    def start(self, *, loading: bool = False) -> RedisServer:
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if compiler is None:
            pytest.skip("no C compiler: the server's clock cannot be set back")
        library = self.folder / LIBRARY
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE], check=True)
        self.set_back(0)
        with preloaded(LD_PRELOAD=str(library), CLOCK_OFFSET_FILE=str(self.folder / OFFSET)):
            return super().start(loading=loading)

    def set_back(self, seconds: float) -> None:
        """Let the server's clock be so much behind this machine's."""
        offset = (self.folder / OFFSET).open("r+b" if (self.folder / OFFSET).exists() else "wb")
        with offset:
            offset.write(round(-seconds * 1_000_000).to_bytes(8, "little", signed=True))


@contextmanager
def preloaded(**variables: str) -> Iterator[None]:
    """Set variables of the environment for a child process that starts meanwhile."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def clock_us(server: RedisServer) -> int:
    """Return a server's time, as its scripts see it."""
    client: redis.Redis
    with server.client() as client:
        seconds, rest = client.time()
    return int(seconds) * 1_000_000 + int(rest)
